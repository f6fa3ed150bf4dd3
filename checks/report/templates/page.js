"use strict";
// Reads the values of a step off a chart, and opens everything for print. The page is whole without.
for (const chart of document.querySelectorAll("figure.chart")) {
  const rows = JSON.parse(chart.querySelector(".data").textContent);
  const plot = chart.querySelector(".plot"), frame = chart.querySelector(".frame");
  const cross = chart.querySelector(".cross"), out = chart.querySelector(".readout");
  const [reference, ours] = out.dataset.names.split("|");
  let at = rows.length - 1;
  const show = (index) => {
    if (!rows.length) return;
    at = Math.min(Math.max(index, 0), rows.length - 1);
    const [step, a, b, gap, floor] = rows[at];
    const first = rows[0][0], span = rows[rows.length - 1][0] - first || 1;
    const box = frame.getBoundingClientRect(), home = plot.getBoundingClientRect();
    cross.hidden = false;
    cross.style.left = `${box.left - home.left + (box.width * (step - first)) / span}px`;
    out.textContent = `step ${step}: ${reference} ${a}, ${ours} ${b}, difference ${gap}` +
      (floor === null ? "" : `, floor ${floor}`);
  };
  out.textContent = "Point at the chart, or move with the arrow keys, to read a step.";
  plot.addEventListener("pointermove", (event) => {
    const box = frame.getBoundingClientRect();
    show(Math.round(((event.clientX - box.left) / box.width) * (rows.length - 1)));
  });
  plot.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) { event.preventDefault(); show(at + move * (event.shiftKey ? 50 : 1)); }
  });
  plot.addEventListener("pointerleave", () => { cross.hidden = true; });
}
const closed = () => document.querySelectorAll("details:not([open])");
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...closed()];
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});
