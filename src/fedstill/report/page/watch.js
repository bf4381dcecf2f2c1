"use strict";
/* Runs in progress: asks the server it came from every other second. */
(() => {
  const { html, svg, fixed, bytes, time, colour, DASH } = charts;
  const byId = (id) => document.getElementById(id);
  const hidden = new Set(), touched = new Set();
  let runs = [], metrics = [], drawn = "", bus = [];
  const short = (run) => run.name.split("/").slice(-2).join("/");

  function lines() {
    return runs.flatMap((run, i) => Object.keys(run.models).map((model, j) => ({
      key: `${run.name} ${model}`, run, model, label: Object.keys(run.models).length > 1 ? `${short(run)} · ${model}` : short(run), colour: colour(i), dash: DASH[j % DASH.length],
    })));
  }

  function cards() {
    byId("cards").replaceChildren(...runs.map((run, i) => {
      const share = Math.round((100 * run.done) / Math.max(1, run.planned));
      const live = run.status === "running" || run.status === "starting";
      const scores = Object.entries(run.models).map(([model, m]) => {
        const worst = run.worst[model];
        const last = (metric) => { const v = (m[metric.key] || []).filter((x) => x !== null).at(-1); return v === undefined ? null : `${metric.title} ${charts.shown(metric, v)}`; };
        const numbers = metrics.map(last).filter((text) => text !== null);
        return html("div", { class: "sub" }, `${model}: ${numbers.join(", ")}${worst ? `, worst client ${worst.client}: ${charts.shown(metrics[0], worst.value)}` : ""}`);
      });
      return html("article", { "data-run": run.name },
        html("strong", {}, html("span", { class: "dot", style: `background:${colour(i)}` }), ` ${short(run)} `),
        html("span", { class: `pill ${live ? "live" : run.status === "finished" ? "" : "bad"}` }, run.status),
        html("div", { class: "sub" }, `${run.method} on ${run.data}, seed ${run.seed}, ${run.clients} clients`),
        html("div", { class: "progress", role: "progressbar", "aria-valuenow": share, "aria-valuemin": 0, "aria-valuemax": 100 }, html("i", { style: `width:${share}%;background:${colour(i)}` })),
        html("div", {}, `round ${run.done} of ${run.planned} · ${bytes(run.bytes.up)} ↑ ${bytes(run.bytes.down)} ↓ · ${time(run.seconds)}${run.left === null ? "" : ` · ${time(run.left)} left`}`),
        run.training.length ? html("div", { class: "sub" }, `training in round ${run.done + 1}: ${run.training.length > 24 ? `${run.training.slice(0, 24).join(", ")} …` : run.training.join(", ")}`) : null,
        run.health.length ? html("div", { class: "note", role: "note" }, run.health.map((line) => html("div", {}, line))) : null, ...scores);
    }));
  }

  function legend() {
    const all = lines();
    const many = all.length > 12;
    for (const line of all) if (!touched.has(line.key)) {
      if (many && line.run.status === "finished") hidden.add(line.key);
      touched.add(line.key);
    }
    byId("legend").replaceChildren(...all.map((line) => {
      const swatch = svg("svg", { width: 22, height: 8, "aria-hidden": "true" });
      svg("line", { x1: 1, x2: 21, y1: 4, y2: 4, stroke: line.colour, "stroke-width": 2.5, "stroke-dasharray": line.dash }, swatch);
      return html("button", { "aria-pressed": String(!hidden.has(line.key)), onclick: () => { hidden.has(line.key) ? hidden.delete(line.key) : hidden.add(line.key); refresh(); } }, swatch, line.label);
    }));
  }

  function curves() {
    const values = (line, metric) => line.run.models[line.model][metric.key] || [];
    const wanted = metrics.filter((metric) => lines().some((line) => values(line, metric).some((v) => v !== null)));
    const names = wanted.map((metric) => metric.key).join();
    if (names === drawn) { bus.forEach((chart) => chart.draw()); return; }
    drawn = names;
    bus = [];
    byId("curves-grid").replaceChildren();
    for (const metric of wanted) {
      charts.lineChart(byId("curves-grid"), {
        title: metric.title, unit: metric.unit, x: "round", whole: true, bus, zero: !metric.limits, limits: metric.limits, format: (m) => fixed(m, metric.digits),
        lines: () => lines().filter((line) => !hidden.has(line.key)).map((line) => ({ ...line,
          points: values(line, metric).map((v, i) => [line.run.rounds[i], v === null ? null : metric.factor * v, 0]).filter((p) => p[1] !== null) })),
      });
    }
  }

  function refresh() { cards(); legend(); curves(); }

  async function ask() {
    try {
      const answer = await fetch("state.json", { cache: "no-store" });
      const state = await answer.json();
      runs = state.runs;
      metrics = state.metrics;
      const going = runs.filter((run) => run.status === "running" || run.status === "starting").length;
      byId("status").textContent = `${runs.length} run${runs.length === 1 ? "" : "s"}, ${going} going on · ${new Date().toLocaleTimeString()}`;
      byId("notes").replaceChildren(...(state.notes.length ? [html("div", { class: "note" }, html("ul", {}, state.notes.slice(0, 8).map((note) => html("li", {}, note))))] : []));
      refresh();
      document.documentElement.dataset.drawn = "yes";
    } catch {
      byId("status").textContent = "the server does not answer; is fedstill watch still running?";
    }
    setTimeout(ask, 2000);
  }
  ask();
})();
