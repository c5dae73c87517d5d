package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Browser asks for pages of the dashboard, with the cookie of a session after Login.
type Browser struct {
	// Base is the controller's URL.
	Base string
	// Client must not follow redirects: see [NoRedirects].
	Client *http.Client
	// Key is sent too, if there is one, for what has no session.
	Key    string
	cookie string
}

// NoRedirects is for the CheckRedirect of a browser's client.
func NoRedirects(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Send gets what is at path as this media type, if it is not "", or sends a form to it if there is one.
func (b *Browser) Send(ctx context.Context, path, accept string, form url.Values) (*http.Response, error) {
	method, body := http.MethodGet, io.Reader(nil)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, b.Base+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	for name, value := range map[string]string{"Accept": accept, "Cookie": b.cookie, "X-Api-Key": b.Key} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return b.Client.Do(req)
}

// Visit is Send that reads the whole reply, and returns its status.
func (b *Browser) Visit(ctx context.Context, path, accept string, form url.Values) (status int, err error) {
	reply, err := b.Send(ctx, path, accept, form)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, reply.Body)
	return reply.StatusCode, errors.Join(err, reply.Body.Close())
}

// Login begins a session.
func (b *Browser) Login(ctx context.Context, key string) error {
	reply, err := b.Send(ctx, "/login", "text/html", url.Values{"key": {key}, "name": {"somebody"}})
	if err != nil {
		return err
	}
	b.cookie, _, _ = strings.Cut(reply.Header.Get("Set-Cookie"), ";")
	if err := reply.Body.Close(); err != nil || reply.StatusCode != http.StatusSeeOther || b.cookie == "" {
		return errors.Join(fmt.Errorf("the login was answered with %s", reply.Status), err)
	}
	return nil
}
