package operating

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/store/storetest/needs"
)

// browser is a tab of one person in the Chromium that all tests share.
type browser struct {
	t    *testing.T
	ctx  context.Context
	base string
	// person has the cookies.
	person cdp.BrowserContextID
	// complaints are exceptions of scripts, and what the policy of pages has refused.
	complaints chan string
	motion     string // what the person prefers
}

// shared is the Chromium of all tests, which starts when the first of them needs it. Each
// person has a profile of their own in it.
var shared struct { // one process is much cheaper than one for each test
	once sync.Once
	ctx  context.Context
	stop func()
	err  error
}

// startShared starts the Chromium of all tests, which ends with them.
func startShared(path string) {
	alloc, cancelAlloc := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(takttest.Patience))...)
	ctx, cancel := chromedp.NewContext(alloc, chromedp.WithErrorf(func(string, ...any) {})) // it complains of events that it does not know
	shared.ctx, shared.stop = ctx, func() {
		_ = chromedp.Cancel(ctx) // waits for the browser's end
		cancel()
		cancelAlloc()
	}
	shared.err = chromedp.Run(ctx)
}

// stopShared ends the Chromium of all tests, if one was started.
func stopShared() {
	if shared.stop != nil {
		shared.stop()
	}
}

// newBrowser opens a tab, with a profile of its own, for a person who knows c by its URL.
func newBrowser(t *testing.T, c *process.Controller) *browser {
	t.Helper()
	path := needs.Browser(t)
	shared.once.Do(func() { startShared(path) })
	require.NoError(t, shared.err)
	in := browserExecutor()
	person, err := target.CreateBrowserContext().Do(in)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, target.DisposeBrowserContext(person).Do(in)) })
	return newTab(t, c, person)
}

// tab opens another tab of the same person, for a part of a test.
func (b *browser) tab(t *testing.T, c *process.Controller) *browser {
	t.Helper()
	return newTab(t, c, b.person)
}

// browserExecutor is a context for what concerns the whole browser.
func browserExecutor() context.Context {
	return cdp.WithExecutor(shared.ctx, chromedp.FromContext(shared.ctx).Browser)
}

func newTab(t *testing.T, c *process.Controller, person cdp.BrowserContextID) *browser {
	t.Helper()
	// In a window of its own, because a tab behind another one is hidden.
	id, err := target.CreateTarget("about:blank").WithBrowserContextID(person).WithNewWindow(true).Do(browserExecutor())
	require.NoError(t, err)
	ctx, cancel := chromedp.NewContext(shared.ctx, chromedp.WithTargetID(id))
	b := &browser{t: t, ctx: ctx, person: person, base: c.URL, complaints: make(chan string, 100), motion: "reduce"}
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // closes the tab
		cancel()
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
	require.NoError(t, chromedp.Run(ctx)) // the tab lives as long as this context
	b.do(log.Enable(), emulation.SetFocusEmulationEnabled(true))
	b.look("light", 1280)
	return b
}

// do runs actions within patience.
func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, takttest.Patience)
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

// logOut takes the person's cookies away, and returns them.
func (b *browser) logOut() (were []*network.CookieParam) {
	b.t.Helper()
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		cookies, err := network.GetCookies().Do(ctx)
		for _, c := range cookies {
			were = append(were, &network.CookieParam{Name: c.Name, Value: c.Value, URL: b.base, Path: c.Path, Secure: c.Secure, HTTPOnly: c.HTTPOnly, SameSite: c.SameSite})
		}
		return err
	}), network.ClearBrowserCookies())
	return were
}

// sees waits until the page shows text somewhere in what a selector finds. It never
// reloads.
func (b *browser) sees(selector, text string) {
	b.t.Helper()
	var found bool
	look := chromedp.Evaluate(fmt.Sprintf(`[...document.querySelectorAll(%q)].some(e => e.textContent.includes(%q))`, selector, text), &found)
	for deadline := time.Now().Add(takttest.Patience); !found && time.Now().Before(deadline); {
		if chromedp.Run(b.ctx, look) != nil { // between two pages there is nothing to look at
			found = false
		}
		select {
		case <-time.After(takttest.Tick):
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
	ctx, cancel := context.WithTimeout(b.ctx, takttest.Patience)
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
