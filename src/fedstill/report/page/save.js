"use strict";
/* Every chart can be taken away: its numbers as CSV, itself as PNG. Nothing is asked of the network. */
const saving = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const LOOK = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "font-size", "font-weight", "font-family", "text-anchor"];
  const SHARP = 2;  // pixels of the picture for each of the page

  /* A copy of a drawing that needs no style sheet: colours and fonts are written into it. */
  function still(plot) {
    const copy = plot.cloneNode(true);
    const from = [plot, ...plot.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
    from.forEach((node, i) => {
      const style = getComputedStyle(node);
      for (const name of LOOK) to[i].setAttribute(name, style.getPropertyValue(name));
      to[i].removeAttribute("class");
      to[i].removeAttribute("style");
    });
    return copy;
  }

  function text(x, y, words, colour, size, parent) {
    const node = document.createElementNS(NS, "text");
    for (const [name, value] of Object.entries({ x, y, fill: colour, "font-size": size, "font-family": "sans-serif" })) node.setAttribute(name, value);
    node.textContent = words;
    parent.append(node);
  }

  /* The drawing with its title above and its keys below. keys: [{label, colour}] */
  function framed(title, plot, keys) {
    const [, , width, height] = plot.getAttribute("viewBox").split(" ").map(Number);
    const probe = document.createElement("span"), ink = getComputedStyle(document.body).color;
    document.body.append(probe);
    const outer = document.createElementNS(NS, "svg");
    const copy = still(plot), whole = height + 34 + 17 * keys.length;
    for (const [name, value] of Object.entries({ xmlns: NS, width: width + 20, height: whole, viewBox: `0 0 ${width + 20} ${whole}` })) outer.setAttribute(name, value);
    for (const [name, value] of Object.entries({ x: 10, y: 26, width, height })) copy.setAttribute(name, value);
    text(10, 18, title, ink, 14, outer);
    outer.append(copy);
    keys.forEach(({ label, colour }, i) => {
      probe.style.color = colour;
      const box = document.createElementNS(NS, "rect"), y = height + 34 + 17 * i;
      for (const [name, value] of Object.entries({ x: 12, y, width: 11, height: 11, fill: getComputedStyle(probe).color })) box.setAttribute(name, value);
      outer.append(box);
      text(30, y + 10, label, ink, 11, outer);
    });
    probe.remove();
    return { source: new XMLSerializer().serializeToString(outer), width: width + 20, height: whole };
  }

  function png(title, plot, keys) {
    const { source, width, height } = framed(title, plot, keys);
    return new Promise((done, failed) => {
      const image = new Image();
      image.onerror = failed;
      image.onload = () => {
        const canvas = document.createElement("canvas");
        canvas.width = SHARP * width;
        canvas.height = SHARP * height;
        const pen = canvas.getContext("2d");
        const ground = getComputedStyle(document.body).backgroundColor;
        pen.fillStyle = ground === "rgba(0, 0, 0, 0)" ? "white" : ground;
        pen.fillRect(0, 0, canvas.width, canvas.height);
        pen.drawImage(image, 0, 0, canvas.width, canvas.height);
        canvas.toBlob(done, "image/png");
      };
      image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
    });
  }

  const quoted = (value) => { const words = value === null || value === undefined ? "" : String(value); return /[",\n\r]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words; };
  const csv = (rows) => rows.map((row) => row.map(quoted).join(",") + "\r\n").join("");
  const slug = (title) => title.toLowerCase().replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^-|-$/g, "") || "chart";

  const own = {
    csv,
    png,
    /* Give a file to the user. */
    offer(name, blob) {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    },
    /* The two buttons of a chart. rows(): a head and the numbers; plot(): an svg that is in the page; keys(): what its colours mean. */
    buttons(title, rows, plot, keys = () => []) {
      const span = document.createElement("span");
      span.className = "save";
      const add = (word, about, click) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = word;
        button.title = about;
        button.addEventListener("click", click);
        span.append(button);
      };
      add("CSV", `the numbers of "${title}"`, () => own.offer(`${slug(title)}.csv`, new Blob([csv(rows())], { type: "text/csv" })));
      add("PNG", `"${title}" as a picture`, () => png(title, plot(), keys()).then((blob) => own.offer(`${slug(title)}.png`, blob)));
      return span;
    },
  };

  /* Pictures that came ready are pictures already; what they show is pixels, so there is no CSV. */
  document.querySelectorAll("figure > img.picture").forEach((image) => {
    const button = document.createElement("button"), span = document.createElement("span");
    span.className = "save";
    button.type = "button";
    button.textContent = "PNG";
    button.addEventListener("click", () => {
      const canvas = document.createElement("canvas");
      canvas.width = image.naturalWidth;
      canvas.height = image.naturalHeight;
      canvas.getContext("2d").drawImage(image, 0, 0);
      canvas.toBlob((blob) => own.offer(`${slug(image.alt)}.png`, blob), "image/png");
    });
    span.append(button);
    image.previousElementSibling.append(span);
  });
  return own;
})();
