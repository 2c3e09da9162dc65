// Puzzles on the bench: what they measure, whether they are solved, and the game on their page.
(() => {
  const { forward, backward } = window.attnbookBench;
  const STORED = ["E", "W_Q", "W_K", "W_V", "W_O", "W_1", "b", "W_2", "U"];
  const SWITCHES = ["scaled", "identity", "same", "rooted", "turned", "normed", "every"];
  const ALL = STORED.join(" ");

  // Settings with numbers, looks, words or switches set to others.
  const moved = (settings, moves) => {
    const to = structuredClone(settings);
    for (const [key, x] of Object.entries(moves)) {
      const [name, i, j] = key.split(",");
      if (name === "set") Object.assign(to, structuredClone(to.sets[x]), { set: x });
      else if (i === undefined) to[name] = x;
      else if (name === "A") to.edges[i][j] = x;
      else if (STORED.includes(name)) to.stored[name][i][j] = x;
      else to.pinned[key] = x;
    }
    return to;
  };

  // The numbers of "A", of "A,2" (a row) or of "A,2,0", of several with spaces between.
  const numbers = (of, names) => names.split(" ").flatMap((name) => {
    const [matrix, ...at] = name.split(",");
    return [at.reduce((rows, i) => rows[i], of[matrix])].flat(2);
  });
  const gaps = (one, other) => one.map((x, k) => Math.abs(x - other[k]));
  const count = (all) => all.filter((gap) => gap > 0.001).length;
  const MEASURES = {
    number: (names, now) => numbers(forward(now), names)[0],
    gradient: (names, now) => Math.max(...numbers(backward(now), names).map(Math.abs)),
    moved: (names, ...both) => count(gaps(...both.map((each) => numbers(forward(each), names)))),
    by: (names, ...both) => Math.max(...gaps(...both.map(({ stored }) => numbers(stored, names === "stored" ? ALL : names)))),
    apart: (names, now) => count(gaps(...names.map((each) => numbers(forward(now), each)))),
    looks: (_, now) => now.edges.flat().filter(Boolean).length,
    reordered: (_, { ids }, start) => +(`${ids}` !== `${start.ids}` && `${[...ids].sort()}` === `${[...start.ids].sort()}`),
    switched: (name, now, start) => +(now[name] !== start[name]),
  };
  const measure = (must, now, start) => {
    const [name, of] = Object.entries(must).find(([key]) => key in MEASURES);
    return MEASURES[name](of, must.ids ? { ...now, ids: must.ids } : now, start);
  };
  const holds = ({ at_least = -Infinity, at_most = Infinity }, x) => x >= at_least - 1e-9 && x <= at_most + 1e-9;

  const namesOf = ({ may }) => (may.of === "stored" ? ALL : may.of).split(" ");
  // What is other than at the start, by keys as moves have them; what a puzzle allows is ok.
  const changes = ({ may }, now, start) => {
    const keys = STORED.flatMap((name) => now.stored[name].flatMap((row, i) => row.flatMap((x, j) => (
      Math.abs(x - start.stored[name][i][j]) > 1e-9 ? `${name},${i},${j}` : []))));
    keys.push(...Object.keys(now.pinned));
    now.edges.forEach((row, i) => row.forEach((open, j) => open !== start.edges[i][j] && keys.push(`A,${i},${j}`)));
    if (`${now.ids}` !== `${start.ids}`) keys.push("ids");
    keys.push(...SWITCHES.filter((name) => now[name] !== start[name]));
    const within = (key) => namesOf({ may }).includes(key.split(",")[0]);
    const few = keys.filter(within).length <= (may.count ?? 1);
    return keys.map((key) => ({ key, ok: (within(key) && few) || (may.also ?? []).includes(key.split(",")[0]) }));
  };
  const solved = (puzzle, now, start) => {
    const all = changes(puzzle, now, start);
    return all.length > 0 && all.every(({ ok }) => ok) && puzzle.must.every((must) => holds(must, measure(must, now, start)));
  };

  // Each number or look that alone can do it, from -9 to 9 by a half, beside the solution's switches.
  const ways = (puzzle, start) => {
    const all = forward(start);
    const base = moved(start, Object.fromEntries(Object.entries(puzzle.solution).filter(([key]) => SWITCHES.includes(key))));
    const tries = Array.from({ length: 37 }, (_, k) => k / 2 - 9);
    return namesOf(puzzle).flatMap((name) => all[name].flatMap((row, i) => row.flatMap((_, j) => {
      const key = `${name},${i},${j}`, values = name === "A" ? [false] : tries;
      return values.some((x) => solved(puzzle, moved(base, { [key]: x }), start)) ? [key] : [];
    })));
  };
  window.attnbookPuzzles = { moved, measure, changes, solved, ways };

  // ---------- the page ----------
  const play = document.querySelector(".play");
  if (!play) return;
  const { formatted, place, columnOf, WORDS, named } = window.attnbookBench;
  const [task, side, box] = play.children;
  const PUZZLES = JSON.parse(document.querySelector("script.puzzles").textContent);
  const needs = JSON.parse(box.querySelector("script").textContent);
  const byTouch = matchMedia("(pointer: coarse)").matches;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const make = (tag, given = {}, inside = "") => {
    const part = Object.assign(document.createElement(tag), given);
    if (typeof inside === "string") part.innerHTML = inside;
    else part.append(...inside);
    return part;
  };
  const button = (text, act, given = {}) => {
    const part = make("button", { type: "button", ...given }, text);
    part.addEventListener("click", act);
    return part;
  };

  // What is kept, in this browser alone: what was solved, how many hints were seen, which ways were found.
  let kept = {};
  try { kept = JSON.parse(localStorage.getItem("puzzles")) ?? {}; } catch { /* then nothing is kept */ }
  const keep = (changed) => {
    kept[puzzle.name] = { ...kept[puzzle.name], ...changed };
    try { localStorage.setItem("puzzles", JSON.stringify(kept)); } catch { /* as above */ }
  };
  const of = ({ name }) => ({ done: false, hints: 0, ways: [], ...kept[name] });

  // The sections below, which without a script have all: they become the index.
  const texts = new Map(PUZZLES.map((each) => {
    const target = document.getElementById(each.name), section = target.closest("section");
    const heading = section.querySelector("h3"), [hints, solution] = section.querySelectorAll("details");
    const said = [...solution.querySelectorAll("p")].map((p) => p.innerHTML);
    const addresses = [target, section].map((part) => `#${part.id}`);
    for (const part of [target, section]) part.removeAttribute("id");  // they lead to the game
    heading.querySelector(".headerlink")?.remove();
    const goal = heading.innerHTML, mark = make("span", { className: "puzzle-mark" });
    mark.setAttribute("role", "img");
    heading.replaceChildren(mark, make("a", { href: `#${each.name}` }, goal));
    section.append(make("p", { className: "learnt" }, said.at(-1)));
    const found = { addresses, section, mark, goal, why: said.at(-1), solution: said[0] };
    return [each, { ...found, hints: [...hints.querySelectorAll("li")].map((li) => li.innerHTML) }];
  }));
  const total = make("p", { className: "count" });
  texts.get(PUZZLES[0]).section.parentNode.before(total);

  // The task, above the bench; help, beside it or below.
  const chapter = make("span", { className: "chapter" });
  const dots = PUZZLES.map((each, i) => make("a", { href: `#${each.name}`, title: each.says,
    className: i && PUZZLES[i - 1].chapter !== each.chapter ? "begins" : "" }));
  const trail = make("nav", { className: "trail", ariaLabel: "Puzzles" }, [chapter, make("span", { className: "dots" }, dots)]);
  const goal = make("h2", { className: "goal", tabIndex: -1 });
  const chips = make("div", { className: "changed" }), waysFound = make("div", { className: "ways" });
  const again = make("button", { type: "button", className: "again" }, "start over");
  const meters = make("div", { className: "meters" });
  task.append(trail, goal, make("div", { className: "state" }, [chips, again, waysFound]), meters);
  const says = make("div", { className: "says" }), acts = make("div", { className: "acts" });
  says.setAttribute("role", "status");
  waysFound.setAttribute("role", "img");
  side.append(says, acts);

  let puzzle, start, now, won = false, shown = false, hint = 0;

  // A number line for each condition; green is where the dot has to be.
  const SHOWN = {
    percent: (x) => `${(100 * x).toFixed(0)}\u00a0%`, count: String, number: formatted, fine: (x) => x.toFixed(3).replace("0.", "."), yes: (x) => (x ? "yes" : "not yet"),
  };
  const along = ({ from = 0, to = 1 }, x) => 5 + 66 * Math.max(0, Math.min(1, (x - from) / (to - from)));
  const meter = (must) => {
    const limit = along(must, must.at_least ?? must.at_most);
    const [x, end] = "at_least" in must ? [limit - 3, 74] : [2, limit + 3];
    const part = make("div", { className: "meter" }, `<span>${named(must.says)}</span>`
      + '<svg viewBox="0 0 76 12" aria-hidden="true"><path d="M3 6H73"/>'
      + `<rect x="${x}" y="2" width="${end - x}" height="8" rx="4"/><circle cy="6" r="4.2"/></svg><b></b>`);
    meters.append(part);
    return (value) => {
      part.classList.toggle("holds", holds(must, value));
      part.querySelector("circle").setAttribute("cx", along(must, value));
      part.querySelector("b").textContent = SHOWN[must.as ?? "percent"](value);
    };
  };
  let lines = [];

  // One change, in words.
  const told = (key) => {
    const [name, i, j] = key.split(","), word = (k) => `“${WORDS[now.ids[k]]}”`;
    if (key === "ids") return now.ids.map((id) => WORDS[id]).join(" ");
    if (i === undefined) return `${box.querySelector(`[name=${name}]`).innerHTML} ${now[name] ? "on" : "off"}`;
    if (name === "A") return `${word(i)} ${now.edges[i][j] ? "looks" : "does not look"} at ${word(j)}`;
    if (STORED.includes(name)) {
      const values = [start, now].map(({ stored }) => formatted(stored[name][i][j])).join(" → ");
      return `${named(place(now, name, i, j))}: ${values}`;
    }
    const [what, where] = name === "S" ? ["logit", word(j)] : [named(name), columnOf(now, name, j)];
    return `${what} of ${word(i)}, ${where}: ${formatted(now.pinned[key])}`;
  };
  const valueOf = (key) => {
    const [name, i, j] = key.split(",");
    if (i === undefined) return now[name];
    return name === "A" ? now.edges[i][j] : STORED.includes(name) ? now.stored[name][i][j] : now.pinned[key];
  };
  const showChanges = (all, allowed) => {
    const says = all.length ? "Only" : "You may change", rule = `${says} ${named(puzzle.may.says)}.`;
    chips.replaceChildren(make("span", {}, allowed && all.length ? "" : rule), ...all.map(({ key, ok }) => {
      const chip = button(`${told(key)} <span aria-hidden="true">×</span>`, () => {
        const others = all.filter((each) => each.key !== key).map((each) => [each.key, valueOf(each.key)]);
        box.bench.set(moved(start, Object.fromEntries(others)));
        goal.focus({ preventScroll: true });
      }, { className: ok ? "" : "extra", title: "Put it back" });
      chip.ariaLabel = `${chip.textContent.replace("×", "")}: put it back`;
      return chip;
    }));
    again.hidden = !all.length;
  };

  // After each drawing of the bench.
  const look = () => {
    const all = changes(puzzle, now, start), allowed = all.every(({ ok }) => ok);
    const values = puzzle.must.map((must) => measure(must, now, start));
    values.forEach((value, k) => lines[k](value));
    showChanges(all, allowed);
    if (shown || !all.length || !allowed || !puzzle.must.every((must, k) => holds(must, values[k]))) return;
    const { ways: found } = of(puzzle);
    const way = all.find(({ key }) => puzzle.ways.includes(key) && !found.includes(key));
    if (won && !way) return;
    keep({ done: true, ways: way ? [...found, way.key] : found });
    if (!won) sweep();
    help(won = true);
    index();
  };
  const sweep = () => puzzle.lanes.forEach((i, k) => {
    const lane = box.querySelector(`[data-key="lane,${i}"]`), green = lane.cloneNode();
    green.removeAttribute("data-key");
    green.setAttribute("class", "sweep");
    lane.after(green);
    if (calm) return;
    const covers = ["inset(0 100% 0 0)", "inset(0)"].map((clipPath) => ({ clipPath, fillOpacity: 0.3 }));
    green.animate([covers[0], { ...covers[1], offset: 0.7 }, { ...covers[1], fillOpacity: 0.08 }],
      { duration: 1100, delay: 90 * k, easing: "cubic-bezier(.4, 0, .2, 1)", fill: "backwards" });
  });

  // How one changes what may be changed.
  const hand = () => {
    const press = byTouch ? "Tap" : "Press";
    if (puzzle.may.of === "A") return `${press} a weight or a ribbon to cut it, and again to give it back.`;
    if (puzzle.may.of === "ids") return `${press} a word twice to change it.`;
    return byTouch ? "Tap a number, then − or +." : "Drag a number up or down, or type one.";
  };
  // Hints one at a time, then the solution; or why it works.
  const matrix = (name) => (name === "A" ? "looks" : named(name));
  const help = (fresh = false) => {
    const { done, hints, ways: found } = of(puzzle), { hints: words, why, solution } = texts.get(puzzle);
    const several = puzzle.ways.length > 1, count = `${found.length} of ${puzzle.ways.length} ways found`;
    // Their room is there before they are shown.
    const kinds = several ? [...new Set(puzzle.ways.map((key) => key.split(",")[0]))] : [];
    waysFound.innerHTML = kinds.map((name) => {
      const marks = puzzle.ways.filter((key) => key.startsWith(`${name},`))
        .map((key) => `<u${found.includes(key) ? ' class="on"' : ""}></u>`);
      return `<span>${matrix(name)}${marks.join("")}</span>`;
    }).join("");
    waysFound.classList.toggle("later", !done);
    waysFound.ariaLabel = count;
    side.classList.toggle("fresh", fresh);
    if (won || shown) {
      const title = won ? `${TICK}<b>Solved</b>${several ? `<span>${count}</span>` : ""}` : "<b>A solution</b>";
      says.innerHTML = `<p class="verdict">${title}</p><p>${won ? why : `${solution} ${why}`}</p>`;
      const next = [...PUZZLES.slice(PUZZLES.indexOf(puzzle) + 1), ...PUZZLES]
        .find((each) => !of(each).done && each !== puzzle);
      acts.replaceChildren(next ? make("a", { className: "go", href: `#${next.name}` }, "Next puzzle")
        : make("span", {}, "All others are solved."));
      return;
    }
    const asks = done ? `You have solved this one. ${several ? `${count}. ` : ""}Once more, or the next?`
      : `${hand()} `
        + "The dots under the goal move with it; green is where they have to be.";
    says.innerHTML = hint ? `<p>${words[hint - 1]}</p>` : `<p class="quiet">${asks}</p>`;
    const show = (k) => () => {
      hint = k;
      keep({ hints: Math.max(hints, k) });
      help();
      acts.firstChild.focus();
    };
    const solve = () => {
      shown = true;
      box.bench.set(moved(start, puzzle.solution));
      help();
      acts.firstChild.focus();
    };
    const more = { className: "more" };
    acts.replaceChildren(
      hints < 3 ? button(hints ? "Next hint" : "A hint", show(hints + 1), more) : button("The solution", solve, more),
      ...words.slice(0, hints).map((_, k) => button(String(k + 1), show(k + 1),
        { className: "nth", ariaLabel: `Hint ${k + 1}`, ariaPressed: String(hint === k + 1) })),
      hints ? "" : make("span", { className: "quiet" }, "three, one at a time"),
    );
  };
  const TICK = '<svg class="tick" viewBox="0 0 24 24" aria-hidden="true"><path d="M4 13l5.5 5.5L20 6"/></svg>';

  // What is done and what is next, as dots and below.
  const index = () => {
    const done = PUZZLES.filter((each) => of(each).done).length, next = PUZZLES.find((each) => !of(each).done);
    total.textContent = `${done} of ${PUZZLES.length} solved.`;
    chapter.textContent = `Chapter ${puzzle.chapter}`;
    PUZZLES.forEach((each, i) => {
      const { section, mark } = texts.get(each), state = of(each).done ? "solved" : each === next ? "next" : "not solved";
      section.classList.toggle("done", state === "solved");
      section.classList.toggle("next", state === "next");
      mark.ariaLabel = state;
      dots[i].classList.toggle("done", state === "solved");
      dots[i].ariaCurrent = each === puzzle ? "true" : null;
      dots[i].ariaLabel = `${i + 1}. ${each.says} (chapter ${each.chapter}, ${state})`;
    });
  };

  const begin = () => {
    [won, shown] = [false, false];
    box.querySelectorAll(".sweep").forEach((green) => green.remove());
    box.bench.begin(start);
    help();
  };
  again.addEventListener("click", () => { begin(); goal.focus({ preventScroll: true }); });
  const open = (first) => {
    const asked = PUZZLES.find((each) => texts.get(each).addresses.includes(location.hash));
    if (!asked && !first) return;
    puzzle = asked ?? PUZZLES.find((each) => !of(each).done) ?? PUZZLES[0];
    start = moved({ ...needs, stage: puzzle.stage, back: false }, puzzle.start);
    hint = 0;
    goal.innerHTML = texts.get(puzzle).goal;
    meters.replaceChildren();
    lines = puzzle.must.map(meter);
    for (const each of box.querySelectorAll(".bench-controls button")) {
      each.hidden = !["play", ...puzzle.switches].includes(each.name);
    }
    index();
    begin();
    // A narrow page shows what is stored or what is computed.
    const above = box.querySelector("[value=stored]"), needed = namesOf(puzzle).some((name) => STORED.includes(name));
    if ((above.ariaPressed === "true") !== needed) above.click();
    if (!asked) return;
    scrollTo({ top: 0 });
    if (!first) goal.focus({ preventScroll: true });
  };
  box.addEventListener("bench", ({ detail }) => { now = detail; look(); });
  addEventListener("hashchange", () => open(false));
  open(true);
})();
