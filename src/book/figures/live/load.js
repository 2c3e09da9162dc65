// A model is loaded when a reader asks for it: its engine, its page and its weights, as plain
// scripts, which a page from a folder may load, too.
const here = document.currentScript.src;
const load = (file) =>
  new Promise((resolve, reject) => {
    const script = document.createElement("script");
    Object.assign(script, { src: new URL(`${file}.js`, here), onload: resolve, onerror: reject });
    document.head.append(script);
  });

for (const element of document.querySelectorAll("[data-model]")) {
  const button = element.querySelector("button"), says = button.textContent, { model } = element.dataset;
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "Loading …";
    try {
      for (const file of ["engine", model, `${model}-weights`]) await load(file);
    } catch {
      button.disabled = false;
      button.textContent = `It could not be loaded. ${says}`;
      return;
    }
    window.attnbookLive.start[model](element);
    element.querySelector("input").focus({ preventScroll: true });
  });
}
