// Replaces the parts of the page that change with the HTML that the agent sends as server-sent events. The page
// works without this script.
"use strict";
(() => {
	const live = document.getElementById("live");
	const version = document.documentElement.dataset.version;
	let stream = null;
	let timer = 0;

	// replace sets what is in an element. A link in it that has the focus keeps it.
	function replace(id, html) {
		const element = document.getElementById(id);
		if (!element) return;
		const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
		element.innerHTML = html;
		if (focused === null) return;
		for (const link of element.querySelectorAll("a")) {
			if (link.getAttribute("href") === focused) {
				link.focus({preventScroll: true});
				return;
			}
		}
	}

	function say(text, state) {
		if (live.textContent !== text) live.textContent = text;
		live.dataset.state = state;
	}

	function close() {
		clearTimeout(timer);
		if (stream) stream.close();
		stream = null;
	}

	function open() {
		close();
		stream = new EventSource("/events" + location.search);
		stream.addEventListener("agent", (event) => {
			if (event.data !== version) location.reload(); // the next agent is of another version
		});
		stream.addEventListener("update", (event) => {
			for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
			live.dataset.updates = Number(live.dataset.updates || 0) + 1;
			say("Live", "live");
		});
		stream.addEventListener("error", () => {
			say("Not live; connecting again", "lost");
			if (stream && stream.readyState === EventSource.CLOSED) timer = setTimeout(open, 5000);
		});
	}

	// A hidden page has no stream, so it costs the agent nothing.
	document.addEventListener("visibilitychange", () => {
		if (document.hidden) close();
		else open();
	});
	if (!document.hidden) open();
})();
