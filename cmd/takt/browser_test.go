package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
)

// chromium is the browser that .ci/setup installs.
const chromium = "chromium"

// browser is a Chromium with one tab, of one person.
type browser struct {
	t    *testing.T
	ctx  context.Context
	base string
	// complaints are exceptions of scripts, and what the policy of pages has refused.
	complaints chan string
	motion     string // what the person prefers
}

// newBrowser starts a browser with a profile of its own that knows c by its URL.
func newBrowser(t *testing.T, c *process.Controller) *browser {
	t.Helper()
	path, err := exec.LookPath(chromium)
	require.NoError(t, err, "run .ci/setup chromium")
	alloc, cancelAlloc := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(patience))...)
	ctx, cancel := chromedp.NewContext(alloc, chromedp.WithErrorf(func(string, ...any) {})) // it complains of events that it does not know
	b := &browser{t: t, ctx: ctx, base: c.URL, complaints: make(chan string, 100), motion: "reduce"}
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits for the browser's end
		cancel()
		cancelAlloc()
	})
	complain := func(text string) {
		select {
		case b.complaints <- text:
		default:
		}
	}
	chromedp.ListenTarget(ctx, func(ev any) {
		switch e := ev.(type) {
		case *runtime.EventExceptionThrown:
			complain(e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Source == log.SourceSecurity || strings.Contains(e.Entry.Text, "Content Security Policy") {
				complain(e.Entry.Text)
			}
		case *page.EventJavascriptDialogOpening:
			complain("a dialog: " + e.Message)
		}
	})
	require.NoError(t, chromedp.Run(ctx)) // the browser lives as long as this context
	b.do(log.Enable(), chromedp.EmulateViewport(1280, 900))
	return b
}

// do runs actions within patience.
func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		var html string
		_ = chromedp.Run(b.ctx, chromedp.OuterHTML("main", &html, chromedp.ByQuery))
		require.NoError(b.t, err, html)
	}
}

// open loads a page of the controller.
func (b *browser) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

// login logs in as name.
func (b *browser) login(key, name string) {
	b.t.Helper()
	b.open("/login")
	b.do(chromedp.SendKeys("#name", name, chromedp.ByQuery), chromedp.SendKeys("#key", key+"\r", chromedp.ByQuery), chromedp.WaitVisible("nav", chromedp.ByQuery))
}

// sees waits until the page shows text somewhere in what a selector finds. It never
// reloads.
func (b *browser) sees(selector, text string) {
	b.t.Helper()
	var found bool
	look := chromedp.Evaluate(fmt.Sprintf(`[...document.querySelectorAll(%q)].some(e => e.textContent.includes(%q))`, selector, text), &found)
	for deadline := time.Now().Add(patience); !found && time.Now().Before(deadline); {
		if chromedp.Run(b.ctx, look) != nil { // between two pages there is nothing to look at
			found = false
		}
		select {
		case <-time.After(tick):
		case <-b.ctx.Done():
		}
	}
	if !found {
		require.Contains(b.t, b.text(selector), text)
	}
}

// text is what a selector finds says.
func (b *browser) text(selector string) (text string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf(`[...document.querySelectorAll(%q)].map(e => e.textContent).join("\n")`, selector), &text))
	return text
}

// eval returns what an expression is; a promise is awaited.
func eval[T any](b *browser, expression string) (v T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &v, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return v
}

// submit fills in the fields of a form, by name, and submits it, as a person
// without a mouse would.
func (b *browser) submit(form string, fields map[string]string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf(`document.querySelector(%q).closest("details")?.setAttribute("open", "")`, form), nil))
	for name, value := range fields {
		b.do(chromedp.SetValue(form+` [name="`+name+`"]`, value, chromedp.ByQuery))
	}
	b.do(chromedp.Evaluate(fmt.Sprintf(`document.querySelectorAll(%q).forEach(e => { e.checked = true })`, form+" input[type=checkbox]"), nil))
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	_, err := chromedp.RunResponse(ctx, chromedp.Evaluate(fmt.Sprintf(`document.querySelector(%q).requestSubmit()`, form), nil))
	require.NoError(b.t, err)
}

// scripts switches JavaScript on or off.
func (b *browser) scripts(on bool) {
	b.t.Helper()
	b.do(emulation.SetScriptExecutionDisabled(!on))
}

// look chooses a colour scheme and a width.
func (b *browser) look(scheme string, width int64) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, 900), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: b.motion},
	}))
}

// shoot writes a picture of the whole page.
func (b *browser) shoot(dir, name string) {
	b.t.Helper()
	var png []byte
	b.do(chromedp.FullScreenshot(&png, 100))
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600))
}

// content checks that nothing went wrong in the browser.
func (b *browser) content() {
	b.t.Helper()
	for {
		select {
		case text := <-b.complaints:
			require.Empty(b.t, text, "the browser complains")
		default:
			return
		}
	}
}
