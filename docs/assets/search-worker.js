// Lets the search work in pages that are opened as files, where browsers start no workers: the worker's script runs in a
// hidden frame instead. Served by http the real Worker is used. It is loaded in place of a script from a CDN.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      this.ready = new Promise((resolve) => {
        this.frame.addEventListener("load", resolve, { once: true })
      })
      const inside = this.frame.contentDocument
      inside.open()
      inside.write(
        "<!doctype html><script>" +
          "window.postMessage = (data) => parent.dispatchEvent(new MessageEvent('worker', { data: { data, frame: frameElement } }));" +
          "window.importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done, failed) => {" +
          "const script = Object.assign(document.createElement('script'), { src: url, onload: done, onerror: failed });" +
          "document.head.append(script) })));" +
          `</scr` + `ipt><script src="${new URL(url, document.baseURI)}"></scr` + `ipt>`,
      )
      inside.close()
      addEventListener("worker", (event) => {
        if (event.data.frame === this.frame) this.#deliver(event.data.data)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }

    #deliver(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      this.onmessage?.(event)
    }
  }
  window.IFrameWorker = IFrameWorker
  window.Worker = IFrameWorker
}
