"use strict";
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("charts").textContent);
  // Nothing leaves the page: no button that shares a chart, no address to share it with.
  const options = {
    responsive: true, displaylogo: false, showLink: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
  };

  // The colours of the page, so that charts follow it when the theme changes.
  const themed = (layout) => {
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {gridcolor: colour("--line"), zerolinecolor: colour("--soft"), linecolor: colour("--line")};
    return {
      margin: {l: 60, r: 20, t: 30, b: 60}, height: 380, hovermode: "closest",
      legend: {orientation: "h", y: -0.25, yanchor: "top"}, ...layout,
      modebar: {bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--link")},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: colour("--text"), size: 13},
      xaxis: {automargin: true, ...axis, ...layout.xaxis}, yaxis: {automargin: true, ...axis, ...layout.yaxis},
    };
  };
  const draw = () => charts.forEach((c) => Plotly.react(c.id, c.data, themed(c.layout), options));

  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", draw);
  addEventListener("afterprint", draw);

  document.querySelectorAll("input[data-chart]").forEach((slider) => {
    const chart = charts.find((c) => c.id === slider.dataset.chart);
    slider.addEventListener("input", () => {
      const step = chart.steps[Number(slider.value)];
      slider.parentElement.querySelector("output").textContent = step.label;
      slider.setAttribute("aria-valuetext", step.label);
      chart.data[0].z = step.z;
      Plotly.restyle(chart.id, {z: [step.z]});
    });
  });
  draw();
  root.dataset.ready = "yes";
})();
