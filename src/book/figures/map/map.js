// The map: a part in words, forward or backward. A finger's first tap chooses, the second follows.
addEventListener("DOMContentLoaded", () => {
  for (const map of document.querySelectorAll(".attention-map")) {
    const [list] = map.getElementsByTagName("select"), button = map.querySelector(".controls button");
    const says = map.querySelector(".said");
    const show = () => {
      const { says: forward, back } = list.selectedOptions[0].dataset;
      const backwards = button.getAttribute("aria-pressed") === "true";
      map.classList.toggle("backwards", backwards);
      says.innerHTML = (backwards ? back : forward) ?? "";
      for (const part of map.querySelectorAll("a.part"))
        part.classList.toggle("chosen", part.classList.contains(list.value));
    };
    const kind = (event) => event.target.closest?.("a.part")?.classList[1];
    const choose = (event) => {
      if (!kind(event) || kind(event) === list.value) return false;
      list.value = kind(event);
      show();
      return true;
    };
    map.addEventListener("pointerover", (event) => event.pointerType === "mouse" && choose(event));
    let tapped = false;
    map.addEventListener("pointerdown", (event) => {
      tapped = event.pointerType === "touch" && choose(event);
    });
    map.addEventListener("focusin", (event) => tapped || choose(event));
    map.addEventListener("click", (event) => tapped && kind(event) && event.preventDefault());
    list.addEventListener("input", show);
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
      show();
    });
  }
});
