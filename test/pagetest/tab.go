package pagetest

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/nodens-dns/nodens/test/poll"
)

// Tab is a tab of a browser. Its methods fail the test on errors; call them from the test's goroutine.
type Tab struct {
	tb      testing.TB
	browser *Browser
	session string

	// errors are the errors and warnings in the console, and requests the URLs that were requested.
	// The browser's lock guards them.
	errors, requests []string
}

// NewTab opens a tab.
func (b *Browser) NewTab() *Tab {
	b.tb.Helper()
	t := &Tab{tb: b.tb, browser: b}
	var target struct{ TargetID string }
	if err := b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		b.tb.Fatal(err)
	}
	var session struct{ SessionID string }
	if err := b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session); err != nil {
		b.tb.Fatal(err)
	}
	t.session = session.SessionID
	b.mu.Lock()
	b.tabs[t.session] = t
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		t.call(domain+".enable", nil, nil)
	}
	return t
}

// event records an event. The caller holds the browser's lock.
func (t *Tab) event(m message) {
	var params struct {
		Type    string
		Request struct{ URL string }
		Entry   struct{ Level, Text, URL string }
		// ExceptionDetails and Args are shown as they are.
		ExceptionDetails, Args json.RawMessage
	}
	if err := json.Unmarshal(m.Params, &params); err != nil {
		t.errors = append(t.errors, err.Error())
		return
	}
	switch m.Method {
	case "Network.requestWillBeSent":
		t.requests = append(t.requests, params.Request.URL)
	case "Log.entryAdded":
		if params.Entry.Level == "error" || params.Entry.Level == "warning" {
			t.errors = append(t.errors, params.Entry.Text+" "+params.Entry.URL)
		}
	case "Runtime.exceptionThrown":
		t.errors = append(t.errors, string(params.ExceptionDetails))
	case "Runtime.consoleAPICalled":
		if params.Type == "error" || params.Type == "warning" {
			t.errors = append(t.errors, string(params.Args))
		}
	}
}

// Errors returns the errors and warnings in the console.
func (t *Tab) Errors() []string {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	return append([]string(nil), t.errors...)
}

// Requests returns the URLs that the tab has requested.
func (t *Tab) Requests() []string {
	t.browser.mu.Lock()
	defer t.browser.mu.Unlock()
	return append([]string(nil), t.requests...)
}

func (t *Tab) call(method string, params, result any) {
	t.tb.Helper()
	if err := t.browser.call(t.session, method, params, result); err != nil {
		t.tb.Fatal(err)
	}
}

// Open goes to a URL, and waits until the page is complete.
func (t *Tab) Open(url string) {
	t.tb.Helper()
	var result struct{ ErrorText string }
	t.call("Page.navigate", map[string]any{"url": url}, &result)
	if result.ErrorText != "" {
		t.tb.Fatalf("%s: %s", url, result.ErrorText)
	}
	t.Await("the page to be complete", "document.readyState === 'complete' && location.href !== 'about:blank'")
}

// Eval returns the value of an expression in JavaScript, as text.
func (t *Tab) Eval(expression string) string {
	t.tb.Helper()
	var result struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	t.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &result)
	if result.ExceptionDetails != nil {
		t.tb.Fatalf("%s: %s", expression, result.ExceptionDetails)
	}
	return fmt.Sprint(result.Result.Value)
}

// Await waits until an expression is true. While the tab goes to another page, it is not.
func (t *Tab) Await(what, expression string) {
	t.tb.Helper()
	poll.Until(t.tb, what, func() bool {
		var result struct{ Result struct{ Value any } }
		err := t.browser.call(t.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &result)
		return err == nil && result.Result.Value == true
	})
}

// Click clicks on the first element that a selector matches, and waits for the page that it leads to.
func (t *Tab) Click(selector string) {
	t.tb.Helper()
	t.leave(func() { t.Eval(fmt.Sprintf("document.querySelector(%q).click()", selector)) })
}

// Submit presses Enter, and waits for the page that it leads to.
func (t *Tab) Submit() {
	t.tb.Helper()
	t.leave(func() { t.Press("Enter", "\r", 13) })
}

// leave calls act, and waits for the page that it leads to.
func (t *Tab) leave(act func()) {
	t.tb.Helper()
	t.Eval("window.left = false")
	act()
	t.Await("the next page", "window.left === undefined && document.readyState === 'complete'")
}

// Press presses a key: its name, such as Tab or Enter, and the text that it makes.
func (t *Tab) Press(key, text string, code int) {
	t.tb.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		params := map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
		if kind == "keyDown" && text != "" {
			params["text"] = text
		}
		t.call("Input.dispatchKeyEvent", params, nil)
	}
}

// Type inserts text where the focus is.
func (t *Tab) Type(text string) {
	t.tb.Helper()
	t.call("Input.insertText", map[string]any{"text": text}, nil)
}

// View is how a tab shows a page.
type View struct {
	Width, Height int
	Phone, Dark   bool
}

// Show sets how the tab shows pages.
func (t *Tab) Show(v View) {
	t.tb.Helper()
	scheme := "light"
	if v.Dark {
		scheme = "dark"
	}
	t.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": v.Width, "height": v.Height, "deviceScaleFactor": 1, "mobile": v.Phone}, nil)
	t.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Picture returns the visible part of the page as a PNG.
func (t *Tab) Picture() []byte {
	t.tb.Helper()
	var result struct{ Data []byte }
	t.call("Page.captureScreenshot", map[string]any{"format": "png", "optimizeForSpeed": false}, &result)
	return result.Data
}

// WithoutScript turns scripts of pages off.
func (t *Tab) WithoutScript() {
	t.tb.Helper()
	t.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
}
