// A model is loaded when a reader turns to it, the small one when it is in sight: its engine, its
// page and its weights, as plain scripts, which a page from a folder may load, too.
const here = document.currentScript.src, loaded = {};
const load = (file) =>
  (loaded[file] ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    Object.assign(script, { src: new URL(`${file}.js`, here), onload: resolve, onerror: () => {
      delete loaded[file];
      reject();
    } });
    document.head.append(script);
  }));

for (const element of document.querySelectorAll("[data-model]")) {
  const button = element.querySelector("button"), says = button.textContent, { model } = element.dataset;
  let begun = false;
  const begin = async () => {
    if (begun) return;
    begun = true;
    button.textContent = "Loading …";
    try {
      for (const file of ["engine", model, `${model}-weights`]) await load(file);
      window.attnbookLive.start[model](element);
    } catch {
      begun = false;
      button.textContent = `It could not be loaded. ${says}`;
    }
  };
  element.addEventListener("focusin", begin);
  element.addEventListener("pointerdown", begin);
  if (model === "dates") new IntersectionObserver((seen) => seen.at(-1).isIntersecting && begin()).observe(element);
}
