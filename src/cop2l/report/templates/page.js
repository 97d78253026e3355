"use strict";
// Every figure's description lies beside it as JSON; one copy of Vega draws them all, from the top down.
(async () => {
  const options = { mode: "vega-lite", renderer: "svg", actions: false, tooltip: { theme: "page" } };
  for (const chart of document.querySelectorAll(".chart")) {
    try {
      await vegaEmbed(chart, JSON.parse(chart.nextElementSibling.textContent), options);
      // The panel's own label describes the chart; the marks inside would only be read out one by one.
      chart.querySelector("svg").setAttribute("aria-hidden", "true");
    } catch (error) {
      chart.textContent = "This figure cannot be drawn here; its numbers are in the table below.";
      console.error(error);
    }
  }
  document.documentElement.dataset.figures = "drawn";
})();
