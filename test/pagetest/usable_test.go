package pagetest_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/cmd/nodens/app/page"
	"github.com/nodens-dns/nodens/test/pagetest"
)

// sound is an expression with the elements that a screen reader could not name or tell from others, and with links that only
// their color tells from the text around them.
const sound = `const name = x => x.getAttribute('aria-label') || document.getElementById(x.getAttribute('aria-labelledby')).textContent;
[
	...[...document.querySelectorAll('input:not([type=hidden])')].filter(x => x.labels.length === 0),
	...[...document.querySelectorAll('th')].filter(x => !x.scope),
	...[...document.querySelectorAll('svg')].filter(x => !x.getAttribute('aria-label') && !x.getAttribute('aria-hidden')),
	...[...document.querySelectorAll('section, nav, [role=region]')].filter(x => !x.getAttribute('aria-label') && !document.getElementById(x.getAttribute('aria-labelledby'))),
	...[...document.querySelectorAll('[id]')].filter(x => document.querySelectorAll('#' + x.id).length > 1),
	...[...document.querySelectorAll('a')].filter(x => !x.textContent.trim()),
	...[...document.querySelectorAll('.note a')].filter(x => getComputedStyle(x).textDecorationLine !== 'underline'),
	...[...document.querySelectorAll('section, [role=region]')].filter((x, i, all) => all.some(y => y !== x && name(y) === name(x))),
].map(x => x.outerHTML.slice(0, 120)).join('\n')`

// cut is an expression that is true if the names of clients that do not fit lose their middle, and none their end.
const cut = `(() => {
	const list = [...document.querySelectorAll('#clients .cut')], cell = x => x.closest('th').getBoundingClientRect().right;
	return list.some(x => x.firstChild.scrollWidth > x.firstChild.clientWidth) && list.every(x => x.lastChild.getBoundingClientRect().right <= cell(x));
})()`

// focused is an expression that says whether the focus is visible.
const focused = `(() => {
	const style = getComputedStyle(document.activeElement), box = document.activeElement.getBoundingClientRect();
	return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1 && box.width > 0 && box.right > 0;
})()`

// TestUsable: every element has a name, the focus is visible on its way through the page, and a table is
// sorted by the keyboard alone. The page fits a phone.
func TestUsable(t *testing.T) {
	server := httptest.NewServer(page.New(pagetest.Sample{Now: time.Now().UTC()}))
	t.Cleanup(server.Close)
	tab := pagetest.Start(t).NewTab()
	for _, path := range []string{"/", "/?q=shop&rows=all", "/explain?name=rates.exchange.example&from=shop/checkout-0d3e9ad8-2v44j"} {
		for _, view := range []pagetest.View{{Width: 360, Height: 740, Phone: true}, {Width: 1280, Height: 900}} {
			tab.Show(view)
			tab.Open(server.URL + path)
			if bad := tab.Eval(sound); bad != "" {
				t.Errorf("%s has elements without a name:\n%s", path, bad)
			}
			if wide := tab.Eval("document.documentElement.scrollWidth > innerWidth"); wide != "false" {
				t.Errorf("%s is wider than %d pixels", path, view.Width)
			}
		}
	}
	tab.Show(pagetest.View{Width: 360, Height: 740, Phone: true})
	tab.Open(server.URL + "/")
	if got := tab.Eval(cut); got != "true" {
		t.Errorf("long names on a phone do not keep their ends: %s", got)
	}
	tab.Show(pagetest.View{Width: 1280, Height: 900})
	tab.Open(server.URL + "/")
	const head = "document.activeElement.closest('#clients thead') !== null"
	for range 60 {
		tab.Press("Tab", "", 9)
		if tab.Eval(focused) != "true" {
			t.Errorf("the focus is not visible on %s", tab.Eval("document.activeElement.outerHTML.slice(0, 200)"))
		}
		if tab.Eval(head) == "true" {
			break
		}
	}
	if tab.Eval(head) != "true" {
		t.Fatal("the keyboard does not lead to the table of clients")
	}
	tab.Submit()
	if got := tab.Eval("document.querySelector('#clients th[aria-sort=ascending]').textContent"); got != "Pod" {
		t.Errorf("Enter on the first head sorts by %s", got)
	}
	finish(t, tab, server.URL)
}
