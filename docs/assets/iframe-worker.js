// A page opened from a file may not start a worker: its script runs in a hidden frame instead, so that search works offline.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise(loaded => {
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = () => loaded(inner);
        inner.document.head.append(script);
      });
    }
    postMessage(data) {
      this.ready.then(inner => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
  };
}
