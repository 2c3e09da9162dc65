// A model is loaded when a reader asks for it: its engine, its page and its weights, as plain
// scripts, which a page from a folder may load, too.
const load = (source) =>
  new Promise((resolve, reject) => {
    const script = document.createElement("script");
    Object.assign(script, { src: source, onload: resolve, onerror: reject });
    document.head.append(script);
  });

for (const element of document.querySelectorAll("[data-model]")) {
  const button = element.querySelector("button"), says = button.textContent;
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "Loading …";
    try {
      for (const source of element.dataset.scripts.split(" ")) await load(source);
    } catch {
      button.disabled = false;
      button.textContent = `It could not be loaded. ${says}`;
      return;
    }
    window.attnbookLive.start[element.dataset.model](element);
    element.querySelector("input").focus({ preventScroll: true });
  });
}
