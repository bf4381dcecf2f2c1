"use strict";
/* Light, dark, or as the system says; buttons that copy. */
(() => {
  const kept = { get: () => { try { return localStorage.getItem("fedstill-theme"); } catch { return null; } }, set: (v) => { try { localStorage.setItem("fedstill-theme", v); } catch { /* a page opened from a file may have no storage */ } } };
  const root = document.documentElement, button = document.getElementById("theme"), order = ["auto", "light", "dark"];
  const apply = (theme) => { if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme; if (button) button.textContent = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[theme]; };
  let theme = order.includes(kept.get()) ? kept.get() : "auto";
  apply(theme);
  if (button) button.addEventListener("click", () => { theme = order[(order.indexOf(theme) + 1) % 3]; kept.set(theme); apply(theme); });
  document.addEventListener("click", (event) => {
    const copy = event.target.closest("button.copy");
    if (!copy) return;
    const text = copy.parentElement.querySelector("pre").textContent;
    const done = () => { copy.textContent = "copied"; setTimeout(() => { copy.textContent = "copy"; }, 1500); };
    if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(text).then(done, () => {});
    else {
      const range = document.createRange();
      range.selectNodeContents(copy.parentElement.querySelector("pre"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      try { if (document.execCommand("copy")) done(); } catch { /* the text is selected: it can be copied by hand */ }
    }
  });
})();
