"use strict";
// Every figure's description lies beside it as JSON; one copy of Vega draws a figure when it is first in sight.
const options = { mode: "vega-lite", renderer: "svg", actions: false, tooltip: { theme: "page" } };
const draw = async () => {
  for (const chart of document.querySelectorAll(".chart:empty")) {
    if (!chart.checkVisibility()) continue;
    try {
      await vegaEmbed(chart, JSON.parse(chart.nextElementSibling.textContent), options);
      // The panel's own label describes the chart; the marks inside would only be read out one by one.
      chart.querySelector("svg").setAttribute("aria-hidden", "true");
    } catch (error) {
      chart.textContent = "This figure cannot be drawn here; its numbers are in the table below.";
      console.error(error);
    }
  }
};
for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", draw);
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(button.previousElementSibling);
    document.execCommand("copy");
    button.textContent = "Copied";
  });
}
draw();
