"use strict";
/* The page: one chapter (data set, or column of a table) at a time; every number comes from the runs' metrics. */
(() => {
  const { html, svg, fixed, mean, deviation, bytes, time, colour, DASH } = charts;
  const data = JSON.parse(document.getElementById("data").textContent);
  const METRICS = charts.byKey(data.metrics), FIRST = data.metrics[0];
  const state = { chapter: 0, hidden: new Set(), seed: null, target: null, way: "both", against: FIRST.key, every: false };
  const byId = (id) => document.getElementById(id);
  const runs = (ids) => ids.map((i) => data.runs[i]);
  const inside = (list) => list.filter((item) => item.chapter === state.chapter);

  /* A colour for each experiment, a dash for each of its models. */
  data.groups.forEach((group) => { group.place = data.groups.filter((g) => g.chapter === group.chapter).indexOf(group); });
  data.series.forEach((line, i) => {
    line.id = i;
    line.colour = colour(data.groups[line.group].place);
    const kin = data.series.filter((s) => s.group === line.group);
    line.dash = DASH[kin.indexOf(line) % DASH.length];
  });
  const shown = () => inside(data.series).filter((line) => !state.hidden.has(line.id));

  /* A run that does not report a metric has no values of it. */
  const values = (run, model, metric) => run.models[model][metric] || [];

  /* Mean and spread over seeds at every round that all seeds have (a run still going on ends its line early). */
  function curve(line, metric, abscissa) {
    const found = new Map();
    for (const run of runs(line.runs)) values(run, line.model, metric).forEach((value, i) => {
      if (value === null || value === undefined) return;
      const round = run.rounds[i];
      if (!found.has(round)) found.set(round, [[], []]);
      found.get(round)[0].push(value);
      found.get(round)[1].push(abscissa ? abscissa(run, i) : round);
    });
    const most = Math.max(0, ...[...found.values()].map((pair) => pair[0].length));
    return [...found].filter(([, pair]) => pair[0].length === most).sort((a, b) => a[0] - b[0])
      .map(([, [values, places]]) => [mean(places), mean(values), deviation(values)]);
  }
  const spreadText = (entry) => (m, s) => fixed(m, entry.digits) + (s ? ` ± ${fixed(s, entry.digits)}` : "");
  const scaled = (metric) => ([x, m, s]) => [x, METRICS[metric].factor * m, METRICS[metric].factor * s];
  const some = (metric) => inside(data.series).some((line) => runs(line.runs).some((run) => values(run, line.model, metric).some((v) => v !== null)));

  /* ---- chapters, legend ------------------------------------------------------------------------------------ */
  function chapters() {
    const pick = byId("chapter");
    pick.hidden = data.chapters.length < 2;
    if (pick.options.length) return;
    pick.append(...data.chapters.map((name, i) => html("option", { value: i }, name)));
    pick.addEventListener("change", () => { state.chapter = +pick.value; state.seed = state.target = null; render(); });
  }

  function legend(host, change) {
    host.replaceChildren();
    for (const line of inside(data.series)) {
      const swatch = svg("svg", { width: 22, height: 8, "aria-hidden": "true" });
      svg("line", { x1: 1, x2: 21, y1: 4, y2: 4, stroke: line.colour, "stroke-width": 2.5, "stroke-dasharray": line.dash }, swatch);
      host.append(html("button", {
        "aria-pressed": String(!state.hidden.has(line.id)), title: "click: show or hide; double click: only this one", "data-series": line.id,
        onclick: () => { state.hidden.has(line.id) ? state.hidden.delete(line.id) : state.hidden.add(line.id); change(); },
        ondblclick: () => { inside(data.series).forEach((s) => (s === line ? state.hidden.delete(s.id) : state.hidden.add(s.id))); change(); },
      }, swatch, line.label));
    }
    if (inside(data.series).length > 2) for (const [word, hide] of [["all", false], ["none", true]]) {
      host.append(html("button", { class: "plain", onclick: () => { inside(data.series).forEach((s) => (hide ? state.hidden.add(s.id) : state.hidden.delete(s.id))); change(); } }, word));
    }
  }

  /* ---- learning curves ------------------------------------------------------------------------------------- */
  let bus = [];
  function curves() {
    const host = byId("curves-grid");
    host.replaceChildren();
    bus = [];
    for (const [metric, entry] of Object.entries(METRICS)) {
      if (!some(metric)) continue;
      charts.lineChart(host, {
        title: entry.title, unit: `${entry.unit} · ${entry.about}`, x: "round", whole: true, bus, zero: !entry.limits, limits: entry.limits, empty: "every line is switched off",
        lines: () => shown().map((line) => ({ label: line.label, colour: line.colour, dash: line.dash, points: curve(line, metric).map(scaled(metric)) })),
        format: spreadText(entry),
      });
    }
  }

  /* ---- every client ---------------------------------------------------------------------------------------- */
  function clients() {
    const seeds = [...new Set(inside(data.series).flatMap((line) => runs(line.runs).map((run) => run.seed)))].sort((a, b) => a - b);
    if (!seeds.includes(state.seed)) state.seed = seeds[0];
    const pick = byId("clients-controls");
    pick.replaceChildren();
    if (seeds.length > 1) pick.append(html("label", {}, "seed", html("select", { onchange: (e) => { state.seed = +e.target.value; clients(); } },
      seeds.map((seed) => html("option", { value: seed, selected: seed === state.seed ? "" : null }, String(seed))))));
    const host = byId("clients-grid");
    host.replaceChildren();
    const lines = shown().filter((line) => runs(line.runs).some((run) => run.seed === state.seed));
    const few = state.every ? lines : lines.slice(0, 12);
    for (const line of few) {
      const run = runs(line.runs).find((r) => r.seed === state.seed);
      const all = run.models[line.model].clients;
      const partition = run.partition === null ? null : data.partitions[run.partition];
      const called = (k) => (partition && partition.client_names ? partition.client_names[k] : `client ${k}`);
      const items = all.map((value, k) => ({ name: k, value })).filter((item) => item.value !== null).map((item) => {
        const held = partition && partition.counts[item.name] ? ` · ${partition.counts[item.name].reduce((a, b) => a + b, 0)} training samples` : "";
        const bad = run.malicious.includes(item.name);
        return { ...item, faint: bad, title: `${called(item.name)}${bad ? " (malicious)" : ""}`, about: `${charts.shown(FIRST, item.value)}${held}` };
      });
      if (!items.length) continue;
      const worst = items.reduce((a, b) => (FIRST.direction * (b.value - a.value) < 0 ? b : a));
      const untested = all.length - items.length;
      charts.barChart(host, {
        title: line.label, items, colour: line.colour, average: mean(items.map((i) => i.value)), about: `${items.length} clients, each on its own test`,
        note: `${items.length} clients, round ${run.rounds[run.rounds.length - 1]}${untested ? `; ${untested} without a test` : ""}`,
        worst: `worst: ${called(worst.name)}, ${charts.shown(FIRST, worst.value)}`,
      });
    }
    if (lines.length > few.length) host.append(html("button", { onclick: () => { state.every = true; clients(); } }, `show all ${lines.length}`));
  }

  /* ---- rounds to a target ---------------------------------------------------------------------------------- */
  function last(line, metric) {
    const found = runs(line.runs).map((run) => values(run, line.model, metric).filter((v) => v !== null).at(-1)).filter((v) => v !== undefined);
    return found.length ? mean(found) : null;
  }
  function reached(run, model, metric, target) {
    const sign = METRICS[metric].direction, place = values(run, model, metric).findIndex((value) => value !== null && sign * (value - target) >= 0);
    return place < 0 ? null : place;
  }
  function speed() {
    const lines = inside(data.series);
    const measures = data.metrics.filter((entry) => entry.limits && some(entry.key)).map((entry) => entry.key);
    const metric = state.target && measures.includes(state.target.metric) ? state.target.metric : measures[0];
    if (!measures.length) return;
    const entry = METRICS[metric];
    const usual = lines.find((line) => data.groups[line.group].method === "fedavg") || lines[0];
    const base = (state.target && lines.find((line) => line.id === state.target.base)) || usual;
    const own = last(base, metric);
    const free = state.target && state.target.value !== null && state.target.value !== undefined ? state.target.value : null;
    const target = free === null ? own : free;
    const change = (part) => { state.target = { metric, base: base.id, value: free, ...part }; speed(); };
    byId("speed-controls").replaceChildren(
      html("label", {}, "metric", html("select", { onchange: (e) => change({ metric: e.target.value, value: null }) },
        measures.map((m) => html("option", { value: m, selected: m === metric ? "" : null }, METRICS[m].title)))),
      html("label", {}, "against", html("select", { onchange: (e) => change({ base: +e.target.value, value: null }) },
        lines.map((line) => html("option", { value: line.id, selected: line === base ? "" : null }, line.label)))),
      html("label", {}, `target (${entry.unit})`, html("input", { type: "number", step: "0.01", min: entry.limits[0], max: entry.limits[1], value: target === null ? "" : fixed(entry.factor * target, entry.digits),
        onchange: (e) => change({ value: e.target.value === "" ? null : +e.target.value / entry.factor }) })),
      ...(free === null ? [] : [html("button", { onclick: () => change({ value: null }) }, `back to ${base.label}'s last`)]));
    const body = byId("speed-body");
    body.replaceChildren();
    if (target === null) return;
    const rounds = (line) => runs(line.runs).map((run) => {
      const place = reached(run, line.model, metric, target);
      if (line === base && free === null) return { round: run.rounds.at(-1), sent: run.traffic.up.at(-1) + run.traffic.down.at(-1) };
      return place === null ? null : { round: run.rounds[place], sent: run.traffic.up[place] + run.traffic.down[place] };
    });
    const known = (line) => { const all = rounds(line); return all.every((r) => r !== null) && all.length ? mean(all.map((r) => r.round)) : null; };
    const yardstick = known(base);
    for (const line of lines) {
      const all = rounds(line), hit = all.filter((r) => r !== null), limit = Math.max(...runs(line.runs).map((run) => run.rounds.at(-1)));
      const numbers = hit.map((r) => r.round);
      const wide = deviation(numbers) > 0;
      const text = !hit.length ? `> ${limit}` : fixed(mean(numbers), wide ? 1 : 0) + (wide ? ` ± ${fixed(deviation(numbers), 1)}` : "") + (hit.length < all.length ? ` (${hit.length} of ${all.length} seeds)` : "");
      const own = known(line);
      const ratio = yardstick === null ? "–" : own === null ? (hit.length ? "–" : `< ${fixed(yardstick / limit, 2)} ×`) : `${fixed(yardstick / own, 2)} ×`;
      body.append(html("tr", { "data-label": line.label },
        html("td", { class: "name" }, html("span", { class: "dot", style: `background:${line.colour}` }), " ", line.label, line === base ? html("span", { class: "spread" }, "  the yardstick") : null),
        html("td", {}, text), html("td", {}, ratio), html("td", {}, hit.length ? bytes(mean(hit.map((r) => r.sent))) : "–")));
    }
    byId("speed-note").textContent = free === null
      ? `Target: the ${entry.title} of ${base.label} after its last round, ${charts.shown(entry, target)}, mean over its seeds; its own rounds are all of them.`
      : `Target: ${entry.title} ${entry.direction > 0 ? "≥" : "≤"} ${charts.shown(entry, target)}.`;
  }

  /* ---- what was sent --------------------------------------------------------------------------------------- */
  function stack(host, keysHost, rows, format, title) {
    const names = [...new Set(rows.flatMap((row) => row.parts.map((p) => p.name)))];
    const paint = (name) => colour((names.indexOf(name) + 0) % 10);
    keysHost.replaceChildren(...names.map((name) => html("span", {}, html("i", { class: "dot", style: `background:${paint(name)}` }), name)));
    const drawing = () => {  // only while it is copied: its colours are the page's
      const plot = charts.stackPlot(rows, paint, format), box = html("div", { style: "position:absolute;left:-9999px" }, plot);
      document.body.append(box);
      setTimeout(() => box.remove(), 1000);
      return plot;
    };
    const numbers = () => [["experiment", "part", "mean over seeds"], ...rows.flatMap((row) => row.parts.map((p) => [row.label, p.name, p.value]))];
    keysHost.append(saving.buttons(title, numbers, drawing, () => names.map((name) => ({ label: name, colour: paint(name) }))));
    const longest = Math.max(1e-12, ...rows.map((row) => row.parts.reduce((a, p) => a + p.value, 0)));
    host.replaceChildren(...rows.flatMap((row) => {
      const total = row.parts.reduce((a, p) => a + p.value, 0);
      return [html("div", { class: "who" }, row.label), html("div", { class: "bar", "data-label": row.label },
        html("span", { class: "parts", style: `flex: 0 1 ${(75 * total) / longest}%` }, row.parts.filter((p) => p.value > 0).map((p) =>
          html("i", { style: `flex: ${p.value / total} 1 0; background:${paint(p.name)}`, title: `${p.name}: ${format(p.value)}` }))),
        html("span", {}, format(total)))];
    }));
  }
  function traffic() {
    const groups = inside(data.groups);
    const ways = [["both", "up and down"], ["up", "up"], ["down", "down"]];
    byId("traffic-controls").replaceChildren(
      html("label", {}, "metric", html("select", { onchange: (e) => { state.against = e.target.value; traffic(); } },
        Object.keys(METRICS).filter(some).map((m) => html("option", { value: m, selected: m === state.against ? "" : null }, METRICS[m].title)))),
      html("label", {}, "direction", html("select", { onchange: (e) => { state.way = e.target.value; traffic(); } },
        ways.map(([way, name]) => html("option", { value: way, selected: way === state.way ? "" : null }, name)))));
    const sent = (run, i) => (state.way === "up" ? run.traffic.up[i] : state.way === "down" ? run.traffic.down[i] : run.traffic.up[i] + run.traffic.down[i]);
    const most = Math.max(1, ...groups.flatMap((g) => runs(g.runs).map((run) => sent(run, run.rounds.length - 1))));
    const [unit, per] = most >= 1e9 ? ["GB", 1e9] : most >= 1e6 ? ["MB", 1e6] : ["kB", 1e3];
    const host = byId("traffic-chart"), metric = some(state.against) ? state.against : FIRST.key, entry = METRICS[metric];
    host.replaceChildren();
    charts.lineChart(host, {
      title: `${entry.title} against bytes`, unit: `${entry.unit}, ${unit} sent by and to all clients`, x: unit, snap: false, zero: !entry.limits, limits: entry.limits, empty: "every line is switched off",
      lines: () => shown().map((line) => ({ label: line.label, colour: line.colour, dash: line.dash, points: curve(line, metric, sent).map(scaled(metric)).map(([x, m, s]) => [x / per, m, s]) })),
      format: spreadText(entry), at: (x) => `${x.toFixed(x < 10 ? 2 : 1)} ${unit}`,
    });
    const part = (group, way, name) => mean(runs(group.runs).map((run) => run.fields[way][name] || 0));
    const chosen = state.way === "both" ? ["up", "down"] : [state.way];
    stack(byId("traffic-stack"), byId("traffic-keys"), groups.map((group) => ({
      label: group.label,
      parts: chosen.flatMap((way) => [...new Set(runs(group.runs).flatMap((run) => Object.keys(run.fields[way])))].map((name) => ({ name: `${name} ${way === "up" ? "↑" : "↓"}`, value: part(group, way, name) }))),
    })), bytes, "Bytes by field");
  }

  /* ---- time ------------------------------------------------------------------------------------------------ */
  function times() {
    stack(byId("time-stack"), byId("time-keys"), inside(data.groups).map((group) => ({
      label: group.label,
      parts: [...new Set(runs(group.runs).flatMap((run) => Object.keys(run.seconds)))].map((name) => ({ name, value: mean(runs(group.runs).map((run) => run.seconds[name] || 0)) })),
    })), time, "Time per phase");
  }

  /* ---- partition, trust ------------------------------------------------------------------------------------ */
  function partition() {
    const used = [...new Map(inside(data.groups).flatMap((g) => runs(g.runs).filter((run) => run.partition !== null).map((run) => [run.partition, { run, group: g }])))];
    byId("partition").hidden = !used.length;
    if (!used.length) return;
    const host = byId("partition-dots"), pick = byId("partition-controls");
    const draw = (number) => {
      const { run } = used.find(([p]) => p === number)[1];
      host.replaceChildren();
      charts.dotChart(host, { counts: data.partitions[number].counts, names: data.partitions[number].class_names.map(String), marked: run.malicious });
      byId("partition-notes").textContent = data.partitions[number].notes.join(" · ");
    };
    const name = ([number, { run, group }]) => { const kin = inside(data.groups).filter((g) => runs(g.runs).some((r) => r.partition === number)); return `seed ${run.seed}${kin.length === inside(data.groups).length ? "" : ` · ${kin.length > 1 ? `${kin.length} experiments` : group.label}`}`; };
    pick.replaceChildren(...(used.length > 1 ? [html("label", {}, "of", html("select", { onchange: (e) => draw(+e.target.value) }, used.map((entry) => html("option", { value: entry[0] }, name(entry)))))] : []));
    draw(used[0][0]);
  }
  function trust() {
    const list = inside(data.groups).flatMap((group) => runs(group.runs).filter((run) => run.trust).map((run) => ({ group, run })));
    byId("trust").hidden = !list.length;
    const host = byId("trust-grid");
    host.replaceChildren();
    for (const { group, run } of list.slice(0, 12)) {
      const { rounds, signs, precision, recall } = run.trust, count = signs[0].length, wide = Math.max(3, Math.min(16, 420 / rounds.length)), high = Math.max(3, Math.min(16, 320 / count));
      const plot = svg("svg", { class: "chart", viewBox: `0 0 ${34 + wide * rounds.length} ${high * count + 34}`, style: `max-width:${34 + wide * rounds.length}px`, role: "img", "aria-label": "who was trusted, round by round" });
      const paths = { "+": "", "-": "" };
      signs.forEach((row, t) => [...row].forEach((sign, k) => { if (sign !== " ") paths[sign] += `M${(34 + t * wide).toFixed(1)} ${(k * high).toFixed(1)}h${(wide - 1).toFixed(1)}v${(high - 1).toFixed(1)}h${(1 - wide).toFixed(1)}z`; }));
      svg("path", { d: paths["+"], fill: "var(--good)", "fill-opacity": 0.6 }, plot);
      svg("path", { d: paths["-"], fill: "var(--bad)" }, plot);
      const step = Math.ceil(11 / high);
      for (let k = 0; k < count; k++) if (k % step === 0 || run.malicious.includes(k)) svg("text", { x: 28, y: (k + 0.5) * high + 4, "text-anchor": "end", class: run.malicious.includes(k) ? "worst" : "" }, plot).textContent = String(k);
      svg("text", { x: 34, y: high * count + 14 }, plot).textContent = `round ${rounds[0]} … ${rounds.at(-1)}`;
      const score = precision.at(-1) === null ? "" : `, last round: precision ${fixed(precision.at(-1), 2)}, recall ${fixed(recall.at(-1), 2)}`;
      const words = { "+": "trusted", "-": "shut out", " ": "" };
      const numbers = () => [["round", ...[...signs[0]].map((_, k) => `client ${k}`)], ...signs.map((row, t) => [rounds[t], ...[...row].map((sign) => words[sign])])];
      const save = saving.buttons(`Who was trusted, ${group.label}, seed ${run.seed}`, numbers, () => plot);
      host.append(html("figure", {}, html("figcaption", {}, `${group.label}, seed ${run.seed}`, save, html("br", {}), html("small", {}, `green: trusted, red: shut out${run.malicious.length ? "; red numbers: malicious" : ""}${score}`)), plot));
    }
  }

  function visibility() {
    legend(byId("legend"), () => { visibility(); bus.forEach((chart) => chart.draw()); clients(); traffic(); });
    document.querySelectorAll(".chapter-name").forEach((node) => { node.textContent = data.chapters.length > 1 ? data.chapters[state.chapter] : ""; });
  }
  function render() {
    chapters(); visibility(); curves(); clients(); speed(); traffic(); times(); partition(); trust();
  }
  render();
  document.documentElement.dataset.drawn = "yes";
})();
