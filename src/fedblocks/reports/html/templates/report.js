"use strict";
(() => {
  const root = document.documentElement;
  const main = document.getElementById("main");
  let charts = JSON.parse(document.getElementById("charts").textContent);
  // Nothing leaves the page: no button that shares a chart, no address to share it with.
  const options = {
    responsive: true, displaylogo: false, showLink: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
  };

  // The colours of the page, so that charts follow it when the theme changes.
  const themed = ({id, data, layout}) => {
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = {gridcolor: colour("--line"), zerolinecolor: colour("--soft"), linecolor: colour("--line")};
    const named = layout.showlegend === false ? 0 : data.filter((trace) => trace.name && trace.showlegend !== false).length;
    const lines = Math.ceil(named / Math.max(1, Math.floor(document.getElementById(id).clientWidth / 130)));
    return {
      margin: {l: 60, r: 20, t: 30, b: 60}, height: 330 + 24 * lines, hovermode: "closest",
      legend: {orientation: "h", y: -0.25, yanchor: "top"}, ...layout,
      modebar: {bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--link")},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: colour("--text"), size: 13},
      xaxis: {automargin: true, ...axis, ...layout.xaxis}, yaxis: {automargin: true, ...axis, ...layout.yaxis},
    };
  };
  const draw = () => charts.forEach((c) => Plotly.react(c.id, c.data, themed(c), options));

  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let width = innerWidth;
  addEventListener("resize", () => { if (width !== innerWidth) draw(); width = innerWidth; });  // legends take other room
  addEventListener("beforeprint", draw);
  addEventListener("afterprint", draw);

  const move = (slider) => {
    const chart = charts.find((c) => c.id === slider.dataset.chart);
    const step = chart.steps[Number(slider.value)];
    slider.parentElement.querySelector("output").textContent = step.label;
    slider.setAttribute("aria-valuetext", step.label);
    chart.data[0].z = step.z;
    Plotly.restyle(chart.id, {z: [step.z]});
  };
  const sliders = () => [...main.querySelectorAll("input[data-chart]")];
  main.addEventListener("input", (event) => event.target.dataset.chart && move(event.target));
  draw();
  root.dataset.ready = "yes";

  // A page of `fedblocks watch`: what is new takes the place of what was, and readers keep their place.
  const reachable = () => [...main.querySelectorAll("a, input, summary, [tabindex]")];
  const renew = (fresh) => {
    const open = new Set([...main.querySelectorAll("details[open] > summary")].map((s) => s.textContent));
    const moved = new Map(sliders().filter((s) => s.value !== s.max).map((s) => [s.dataset.chart, s.value]));
    const focus = reachable().indexOf(document.activeElement);
    const height = scrollY;
    charts.forEach((c) => Plotly.purge(c.id));
    charts = fresh.charts;
    main.innerHTML = fresh.html;  // escaped by the server; the page's policy runs no script in it
    draw();
    main.querySelectorAll("summary").forEach((s) => { s.parentElement.open = open.has(s.textContent); });
    sliders().filter((s) => moved.has(s.dataset.chart)).forEach((s) => { s.value = moved.get(s.dataset.chart); move(s); });
    if (focus >= 0) reachable()[focus]?.focus({preventScroll: true});
    scrollTo(0, height);
    root.dataset.version = fresh.version;
  };
  if (root.dataset.live) {
    const told = document.getElementById("live");
    const events = new EventSource(root.dataset.live);
    events.addEventListener("content", (event) => {
      const fresh = JSON.parse(event.data);
      if (root.dataset.version !== fresh.version) renew(fresh);
      told.textContent = fresh.status;
    });
    events.addEventListener("trouble", (event) => { told.textContent = JSON.parse(event.data).message; });
    events.addEventListener("error", () => { told.textContent = "the server does not answer; start fedblocks watch again"; });
  }
})();
