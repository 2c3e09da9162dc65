// Paper is light, and its links are notes; the theme button says its state; the contents mark the
// section being read.
{
  const root = document.documentElement;

  // What a link of the main path leads to, in words: a work, an address, or a page that has one.
  const says = (link) => {
    if (link.title && link.matches(".internal")) return link.title;
    const home = document.querySelector("link[rel=canonical]")?.href;
    const address = link.matches(".external") ? link.href : home && new URL(link.getAttribute("href"), home).href;
    return address?.split("#")[0] !== home ? address : "";
  };
  const note = () => {
    const notes = document.createElement("ol"), known = [];
    notes.className = "link-notes";
    for (const link of document.querySelectorAll(".bd-article a.reference:not(.claim-link, .headerlink, nav *)")) {
      const words = says(link);
      if (!words || link.textContent === words || link.closest("details:not([open])")) continue;
      if (!known.includes(words)) {
        known.push(words);
        notes.append(Object.assign(document.createElement("li"), { textContent: words }));
      }
      link.insertAdjacentHTML("afterend", `<sup class="link-note">${known.indexOf(words) + 1}</sup>`);
    }
    if (known.length) document.querySelector(".bd-article").append(notes);
  };

  let onScreen = "";
  const print = (starts) => {
    if (starts == !!onScreen) return;
    const theme = starts ? "light" : onScreen;
    onScreen = starts ? root.dataset.theme : "";
    root.dataset.theme = theme;
    if (starts) note();
    else for (const each of document.querySelectorAll(".link-note, .link-notes")) each.remove();
  };
  matchMedia("print").addEventListener("change", (event) => print(event.matches));
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));

  const ready = () => {
    const button = document.querySelector(".theme-switch-button span");
    const names = { auto: "automatic", light: "light", dark: "dark" };
    const say = () => (button.textContent = `Theme: ${names[root.dataset.mode]}`);
    new MutationObserver(say).observe(root, { attributeFilter: ["data-mode"] });
    say();

    // The section being read is the last whose heading is above the top of the window.
    const links = [...document.querySelectorAll(".bd-toc-nav a[href^='#']")];
    const sections = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
    const top = document.getElementById("pst-back-to-top");
    let waiting = false, before = 0, marked = null;
    const mark = () => {
      waiting = false;
      const below = sections.findIndex((each) => each.getBoundingClientRect().top > Math.min(innerHeight / 3, 160));
      const link = links[(below < 0 ? links.length : below) - 1] ?? null;
      if (link !== marked) {
        marked?.removeAttribute("aria-current");
        link?.setAttribute("aria-current", "location");
        for (const each of document.querySelectorAll(".bd-toc-nav .active")) each.classList.remove("active");
        for (let each = link; each && !each.matches(".bd-toc-nav"); each = each.parentElement)
          if (each.matches("a, li")) each.classList.add("active");
        // The contents may be longer than the window.
        const frame = link?.closest(".bd-sidebar-secondary");
        if (frame && frame.scrollHeight > frame.clientHeight)
          frame.scrollTop += link.getBoundingClientRect().top - frame.clientHeight / 2;
        marked = link;
      }
      top.style.display = scrollY < before && scrollY > innerHeight ? "block" : "none";
      before = scrollY;
    };
    addEventListener("scroll", () => {
      if (!waiting) requestAnimationFrame(mark);
      waiting = true;
    }, { passive: true });
    top.addEventListener("click", () => scrollTo({ top: 0 }));
    mark();

    // The theme's buttons name what they do; a page with a policy runs no script in an attribute.
    const does = { "toggleFullScreen()": () => toggleFullScreen(), "window.print()": () => window.print() };
    for (const each of document.querySelectorAll("[data-does]")) each.addEventListener("click", does[each.dataset.does]);

    // A menu closes when one goes elsewhere.
    for (const menu of document.querySelectorAll("details.menu")) {
      const close = () => (menu.open = false);
      document.addEventListener("click", (event) => menu.contains(event.target) || close());
      menu.addEventListener("focusout", (event) => event.relatedTarget && !menu.contains(event.relatedTarget) && close());
      menu.addEventListener("keydown", (event) => {
        if (event.key != "Escape") return;
        close();
        menu.querySelector("summary").focus();
      });
    }
  };
  document.readyState == "loading" ? addEventListener("DOMContentLoaded", ready) : ready();
}
