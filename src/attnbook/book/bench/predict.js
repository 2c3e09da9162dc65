// A question before the answer: what is chosen is marked, and what happens is told.
(() => {
  document.addEventListener("click", ({ target }) => {
    const ask = target.closest(".predict");
    if (!ask || !target.matches(".options button")) return;
    for (const each of ask.querySelectorAll(".options button")) each.setAttribute("aria-pressed", each === target);
    ask.classList.add("told");
    ask.querySelector("details").open = true;
  });
})();
