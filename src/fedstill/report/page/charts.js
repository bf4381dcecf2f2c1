"use strict";
/* Small charts without a library: lines with bands, sorted bars, dots. Colours are CSS variables, so themes need no redraw. */
const charts = (() => {
  const NS = "http://www.w3.org/2000/svg";

  function svg(tag, attributes, parent) {
    const node = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    if (parent) parent.appendChild(node);
    return node;
  }

  function html(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
    return node;
  }

  /* Exactly what Python's f"{x:.2f}" prints: the nearest decimal, a tie to the even digit. */
  function fixed(x, digits) {
    const near = x.toFixed(digits);
    const long = Math.abs(x).toFixed(Math.min(100, digits + 30));
    const tail = long.slice(long.length - 30);
    if (!/^50*$/.test(tail)) return near;
    const whole = long.slice(0, long.length - 30);
    return /[13579]\.?$/.test(whole) ? near : (x < 0 ? "-" : "") + whole.replace(/\.$/, "");
  }

  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const deviation = (values) => {
    if (values.length < 2) return 0;
    const m = mean(values);
    return Math.sqrt(values.reduce((a, b) => a + (b - m) ** 2, 0) / (values.length - 1));
  };

  function ticks(low, high, count, whole) {
    if (!(high > low)) high = low + 1e-9;
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999 && !(whole && s % 1)) || 1;
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(+(i * step).toPrecision(12));
    return { found, step };
  }

  function plainNumber(value, step) {
    const digits = (String(+step.toPrecision(6)).split(".")[1] || "").length;
    return value.toFixed(Math.min(digits, 8));
  }

  const DASH = ["", "6 4", "2 4", "9 3 2 3"];

  /* A chart of lines. lines(): [{label, colour, dash, points: [[x, mean, spread]]}]. bus: charts whose crosshairs move together. */
  function lineChart(host, options) {
    const figure = html("figure", {});
    const caption = html("figcaption", {}, options.title, " ", html("small", {}, options.unit || ""));
    const plot = svg("svg", { class: "chart", role: "img", tabindex: 0, "aria-label": `${options.title}: ${options.about || "curves"}` });
    const tip = html("div", { class: "tip", hidden: "" });
    const numbers = () => [["line", options.x, `${options.title} (mean)`, "spread"], ...lines.flatMap((line) => line.points.map((p) => [line.label, ...p]))];
    caption.append(saving.buttons(options.title, numbers, () => plot, () => lines));
    figure.append(caption, plot, tip);
    host.append(figure);
    let lines = [], scale = null, cross = null, at = null;
    const height = options.height || 230;

    function draw() {
      lines = options.lines().filter((line) => line.points.length);
      plot.replaceChildren();
      const width = Math.max(220, figure.clientWidth || 480);
      plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
      plot.setAttribute("height", height);
      const box = { left: 44, right: width - 10, top: 10, bottom: height - 34 };
      if (!lines.length) {
        svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, plot).textContent = options.empty || "nothing to draw";
        scale = null;
        return;
      }
      const xs = lines.flatMap((l) => l.points.map((p) => p[0]));
      const ys = lines.flatMap((l) => l.points.flatMap((p) => [p[1] - p[2], p[1] + p[2]]));
      let [x0, x1] = bounds(xs);
      let [y0, y1] = bounds(ys);
      if (options.zero) y0 = Math.min(0, y0);
      if (options.limits) { y0 = Math.max(options.limits[0], y0); y1 = Math.min(options.limits[1], y1); }
      if (y1 - y0 < 1e-9) { y0 -= 0.5 * (Math.abs(y0) || 1) * 0.1; y1 += 0.5 * (Math.abs(y1) || 1) * 0.1; }
      if (options.limits && y1 - y0 < 2) y1 = y0 + 2;  // per cent: less is noise
      const pad = (y1 - y0) * 0.05;
      y0 = options.zero && y0 >= 0 ? 0 : y0 - pad;
      y1 += pad;
      if (options.limits) { y0 = Math.max(options.limits[0], y0); y1 = Math.min(options.limits[1], y1); }
      if (x1 === x0) { x0 -= 1; x1 += 1; }
      const X = (x) => box.left + ((x - x0) / (x1 - x0)) * (box.right - box.left);
      const Y = (y) => box.bottom - ((Math.min(Math.max(y, y0), y1) - y0) / (y1 - y0)) * (box.bottom - box.top);
      scale = { X, Y, x0, x1, box, width };
      const vertical = ticks(y0, y1, 5);
      for (const tick of vertical.found) {
        svg("line", { class: "rule", x1: box.left, x2: box.right, y1: Y(tick), y2: Y(tick) }, plot);
        svg("text", { x: box.left - 7, y: Y(tick) + 4, "text-anchor": "end" }, plot).textContent = plainNumber(tick, vertical.step);
      }
      const across = ticks(x0, x1, Math.max(2, Math.min(8, (box.right - box.left) / 62)), options.whole);
      for (const tick of across.found) {
        svg("text", { x: X(tick), y: box.bottom + 16, "text-anchor": "middle" }, plot).textContent = plainNumber(tick, across.step);
      }
      svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }, plot);
      svg("text", { x: box.right, y: box.bottom + 31, "text-anchor": "end" }, plot).textContent = options.x;
      for (const line of lines) if (line.points.some((p) => p[2] > 0)) {
        const over = line.points.map((p) => `${X(p[0]).toFixed(1)},${Y(p[1] + p[2]).toFixed(1)}`);
        const under = line.points.map((p) => `${X(p[0]).toFixed(1)},${Y(p[1] - p[2]).toFixed(1)}`).reverse();
        svg("polygon", { points: over.concat(under).join(" "), fill: line.colour, "fill-opacity": lines.length > 8 ? 0.05 : 0.13, class: "band" }, plot);
      }
      for (const line of lines) {
        const path = line.points.map((p, i) => `${i ? "L" : "M"}${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`).join("");
        svg("path", { class: "line", d: path, stroke: line.colour, "stroke-dasharray": line.dash || "", "data-label": line.label }, plot);
        if (line.points.length === 1) svg("circle", { cx: X(line.points[0][0]), cy: Y(line.points[0][1]), r: 3.5, fill: line.colour }, plot);
      }
      cross = svg("g", {}, plot);
      if (at !== null) mark(at, false);
    }

    function nearest(line, x) {
      let best = null;
      for (const p of line.points) if (best === null || Math.abs(p[0] - x) < Math.abs(best[0] - x)) best = p;
      return best;
    }

    /* Show the values at x; the tooltip only on the chart that is pointed at. */
    function mark(x, here) {
      at = x;
      if (!scale || !cross) return;
      cross.replaceChildren();
      tip.hidden = true;
      if (x === null) return;
      const hits = lines.map((line) => [line, nearest(line, x)]).filter(([, p]) => p && p[0] >= scale.x0 && p[0] <= scale.x1);
      if (!hits.length) return;
      const snap = options.snap === false ? x : hits.reduce((a, b) => (Math.abs(b[1][0] - x) < Math.abs(a[1][0] - x) ? b : a))[1][0];
      svg("line", { class: "cross", x1: scale.X(snap), x2: scale.X(snap), y1: scale.box.top, y2: scale.box.bottom }, cross);
      for (const [line, p] of hits) svg("circle", { cx: scale.X(p[0]), cy: scale.Y(p[1]), r: 3.2, fill: line.colour }, cross);
      if (!here) return;
      const rows = hits.sort((a, b) => b[1][1] - a[1][1]).slice(0, 12).map(([line, p]) =>
        html("div", {}, html("span", { class: "dot", style: `background:${line.colour}` }), html("span", {}, line.label), html("span", {}, options.format(p[1], p[2]))));
      tip.replaceChildren(html("b", {}, options.at ? options.at(snap) : `${options.x} ${snap}`), ...rows);
      tip.hidden = false;
      const left = scale.X(snap) * (figure.clientWidth / scale.width);
      const wide = tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(figure.clientWidth - wide, left > figure.clientWidth / 2 ? left - wide - 12 : left + 12))}px`;
      tip.style.top = `${caption.offsetHeight + 12}px`;
    }

    const bus = options.bus || [];
    const own = { draw, mark };
    bus.push(own);
    const tell = (x) => bus.forEach((chart) => chart.mark(x, chart === own));
    plot.addEventListener("pointermove", (event) => {
      if (!scale) return;
      const frame = plot.getBoundingClientRect();
      const inside = ((event.clientX - frame.left) / frame.width) * scale.width;
      const share = (inside - scale.box.left) / (scale.box.right - scale.box.left);
      tell(scale.x0 + Math.min(1, Math.max(0, share)) * (scale.x1 - scale.x0));
    });
    plot.addEventListener("pointerleave", () => tell(null));
    plot.addEventListener("blur", () => tell(null));
    plot.addEventListener("keydown", (event) => {
      if (!scale || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      event.preventDefault();
      const steps = [...new Set(lines.flatMap((l) => l.points.map((p) => p[0])))].sort((a, b) => a - b);
      const now = at === null ? -1 : steps.reduce((best, x, i) => (Math.abs(x - at) < Math.abs(steps[best] - at) ? i : best), 0);
      tell(steps[Math.min(steps.length - 1, Math.max(0, now + (event.key === "ArrowRight" ? 1 : -1)))]);
    });
    watchSize(figure, draw);
    draw();
    return own;
  }

  function bounds(values) {
    let low = Infinity, high = -Infinity;
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
    return [low, high];
  }

  function watchSize(node, draw) {
    let width = 0;
    if (!("ResizeObserver" in window)) return;
    new ResizeObserver(() => {
      if (Math.abs(node.clientWidth - width) <= 1) return;
      width = node.clientWidth;
      requestAnimationFrame(draw);
    }).observe(node);
  }

  /* Bars sorted from the worst; items: [{name, value, about}] with values 0..1. */
  function barChart(host, options) {
    const figure = html("figure", {});
    const plot = svg("svg", { class: "chart", role: "img", "aria-label": options.about });
    const tip = html("div", { class: "tip", hidden: "" });
    const save = saving.buttons(`${options.title}, every client`, () => [["client", "value"], ...items.map((item) => [item.title, item.value])], () => plot);
    figure.append(html("figcaption", {}, options.title, save, html("br", {}), html("small", {}, options.note)), plot, tip);
    host.append(figure);
    const items = [...options.items].sort((a, b) => a.value - b.value || a.name - b.name);
    const height = 120;
    function draw() {
      plot.replaceChildren();
      const width = Math.max(180, figure.clientWidth || 260);
      plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
      plot.setAttribute("height", height);
      const box = { left: 30, right: width - 2, top: 8, bottom: height - 18 };
      for (const tick of [0, 0.5, 1]) {
        const y = box.bottom - tick * (box.bottom - box.top);
        svg("line", { class: "rule", x1: box.left, x2: box.right, y1: y, y2: y }, plot);
        svg("text", { x: box.left - 5, y: y + 4, "text-anchor": "end" }, plot).textContent = String(100 * tick);
      }
      const step = (box.right - box.left) / Math.max(items.length, 1);
      const gap = step > 4 ? Math.min(3, step * 0.22) : 0;
      items.forEach((item, i) => {
        const size = Math.max(1, item.value * (box.bottom - box.top));
        svg("rect", { x: box.left + i * step + gap / 2, y: box.bottom - size, width: Math.max(0.8, step - gap), height: size, rx: step > 6 ? 1.5 : 0,
          fill: i === 0 ? "var(--bad)" : options.colour, "fill-opacity": item.faint ? 0.35 : 1 }, plot);
      });
      if (options.average !== null) {
        const y = box.bottom - options.average * (box.bottom - box.top);
        svg("line", { class: "cross", x1: box.left, x2: box.right, y1: y, y2: y }, plot);
      }
      svg("text", { class: "worst", x: box.left, y: height - 4 }, plot).textContent = options.worst;
      plot.onpointermove = (event) => {
        const frame = plot.getBoundingClientRect();
        const place = Math.floor((((event.clientX - frame.left) / frame.width) * width - box.left) / step);
        const item = items[Math.min(items.length - 1, Math.max(0, place))];
        if (!item) return;
        tip.replaceChildren(html("b", {}, item.title), item.about);
        tip.hidden = false;
        tip.style.left = `${Math.max(0, Math.min(figure.clientWidth - tip.offsetWidth, box.left + place * step - tip.offsetWidth / 2))}px`;
        tip.style.top = `${plot.getBoundingClientRect().top - figure.getBoundingClientRect().top - tip.offsetHeight - 4}px`;
      };
      plot.onpointerleave = () => { tip.hidden = true; };
    }
    watchSize(figure, draw);
    draw();
  }

  /* Dots whose area is a count: clients across, classes down; totals above. */
  function dotChart(host, options) {
    const { counts, names } = options;
    const clients = counts.length, classes = names.length;
    const figure = html("figure", { class: "dots" });
    const plot = svg("svg", { class: "chart", role: "img", "aria-label": `samples of ${classes} classes at ${clients} clients` });
    const tip = html("div", { class: "tip", hidden: "" });
    figure.append(saving.buttons("Who holds what", () => [["client", ...names], ...counts.map((row, k) => [k, ...row])], () => plot), plot, tip);
    host.append(figure);
    const most = Math.max(1, ...counts.map((row) => Math.max(...row)));
    const totals = counts.map((row) => row.reduce((a, b) => a + b, 0));
    function draw() {
      plot.replaceChildren();
      const width = Math.max(240, figure.clientWidth || 600);
      const left = Math.min(110, Math.max(58, 14 + 6.4 * Math.max(...names.map((n) => n.length))));
      const across = Math.min(46, (width - left - 6) / clients);
      const down = Math.min(26, Math.max(classes > 40 ? 5 : 11, across));
      const top = 56, height = top + down * classes + 34;
      plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
      plot.setAttribute("height", height);
      const tallest = Math.max(1, ...totals);
      const each = Math.ceil(12 / down), every = [1, 2, 5, 10, 20, 50, 100].find((n) => n * across >= 8 + 7 * String(clients).length) || 200;
      names.forEach((name, c) => {
        const y = top + (c + 0.5) * down;
        svg("line", { class: "rule", x1: left, x2: left + across * clients, y1: y, y2: y }, plot);
        if (c % each === 0) svg("text", { x: left - 7, y: y + 4, "text-anchor": "end" }, plot).textContent = name.length > 15 ? name.slice(0, 14) + "…" : name;
      });
      let path = "";
      const size = Math.min(across, down) * 0.47;
      counts.forEach((row, k) => {
        const x = left + (k + 0.5) * across;
        const bar = (totals[k] / tallest) * (top - 18);
        svg("rect", { x: x - across * 0.32, y: top - 8 - bar, width: across * 0.64, height: bar, fill: "var(--faint)", "fill-opacity": 0.45 }, plot);
        row.forEach((count, c) => {
          if (!count) return;
          const r = Math.max(0.7, size * Math.sqrt(count / most)), y = top + (c + 0.5) * down;
          path += `M${(x - r).toFixed(1)} ${y.toFixed(1)}a${r.toFixed(2)} ${r.toFixed(2)} 0 1 0 ${(2 * r).toFixed(2)} 0a${r.toFixed(2)} ${r.toFixed(2)} 0 1 0 ${(-2 * r).toFixed(2)} 0`;
        });
        const marked = options.marked.includes(k);
        if (k % every === 0 || marked) {
          const text = svg("text", { x, y: top + down * classes + 16, "text-anchor": "middle", class: marked ? "worst" : "" }, plot);
          text.textContent = String(k);
        }
      });
      svg("path", { d: path, fill: "var(--s0)" }, plot);
      svg("text", { x: left - 7, y: top - 12, "text-anchor": "end" }, plot).textContent = "samples";
      svg("text", { x: left + across * clients, y: height - 3, "text-anchor": "end" }, plot).textContent = options.marked.length ? "client (red: malicious)" : "client";
      plot.onpointermove = (event) => {
        const frame = plot.getBoundingClientRect(), ratio = width / frame.width;
        const k = Math.floor(((event.clientX - frame.left) * ratio - left) / across), c = Math.floor(((event.clientY - frame.top) * ratio - top) / down);
        tip.hidden = !(k >= 0 && k < clients);
        if (tip.hidden) return;
        tip.replaceChildren(html("b", {}, `client ${k}: ${totals[k].toLocaleString("en")} samples`), c >= 0 && c < classes ? `${names[c]}: ${counts[k][c].toLocaleString("en")}` : "");
        tip.style.left = `${Math.max(0, Math.min(figure.clientWidth - tip.offsetWidth, (left + k * across) / ratio + 16))}px`;
        tip.style.top = `${Math.max(0, event.clientY - frame.top - 52)}px`;
      };
      plot.onpointerleave = () => { tip.hidden = true; };
    }
    watchSize(figure, draw);
    draw();
  }

  /* Horizontal bars of parts as a drawing, for a picture of them. rows: [{label, parts: [{name, value}]}] */
  function stackPlot(rows, paint, format) {
    const width = 640, high = 24, left = 190, plot = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${high * rows.length}` });
    const longest = Math.max(1e-12, ...rows.map((row) => row.parts.reduce((a, p) => a + p.value, 0)));
    rows.forEach((row, i) => {
      let x = left;
      svg("text", { x: left - 8, y: i * high + 16, "text-anchor": "end" }, plot).textContent = row.label.length > 30 ? `${row.label.slice(0, 29)}…` : row.label;
      for (const part of row.parts) {
        const wide = ((width - left - 90) * part.value) / longest;
        svg("rect", { x, y: i * high + 3, width: wide, height: high - 6, fill: paint(part.name) }, plot);
        x += wide;
      }
      svg("text", { x: x + 6, y: i * high + 16 }, plot).textContent = format(row.parts.reduce((a, p) => a + p.value, 0));
    });
    return plot;
  }

  const bytes = (count) => {
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (count < 1000 || unit === "GB") return unit === "B" ? `${fixed(count, 0)} B` : `${fixed(count, 1)} ${unit}`;
      count /= 1000;
    }
    return "";
  };

  const time = (seconds) => (seconds < 60 ? `${fixed(seconds, 1)} s` : seconds < 3600 ? `${fixed(seconds / 60, 1)} min` : `${fixed(seconds / 3600, 1)} h`);

  const colour = (place) => (place < 10 ? `var(--s${place})` : `hsl(${(place * 137.5) % 360} 55% 52%)`);

  /* Metrics as the page's data tell of them: by key; and a value as they are shown. */
  const byKey = (metrics) => Object.fromEntries(metrics.map((metric) => [metric.key, metric]));
  const shown = (metric, value) => `${fixed(metric.factor * value, metric.digits)} ${metric.unit}`;

  return { byKey, shown, svg, html, fixed, mean, deviation, lineChart, barChart, dotChart, stackPlot, bytes, time, colour, DASH };
})();
