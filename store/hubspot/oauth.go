package hubspot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// App is the app that portals install.
type App struct {
	ClientID, ClientSecret string
	// RedirectURL is the address to which HubSpot redirects the installer.
	RedirectURL string
	// Scopes are separated by spaces. Defaults to "automation oauth".
	Scopes string
}

// Tokens are HubSpot's answer to a code or a refresh token.
type Tokens struct {
	Access, Refresh string
	ExpiresIn       time.Duration
}

// AuthorizeURL is the page where an installer authorizes the app. HubSpot sends state
// back.
func (c *Client) AuthorizeURL(app App, state string) string {
	q := url.Values{
		"client_id": {app.ClientID}, "redirect_uri": {app.RedirectURL},
		"scope": {cmp.Or(app.Scopes, "automation oauth")}, "state": {state},
	}
	return c.pages + "/oauth/authorize?" + q.Encode()
}

// RefusedError is HubSpot's refusal to give tokens.
type RefusedError struct{ Answer Answer }

func (e *RefusedError) Error() string { return e.Answer.String() }

// Exchange turns the code of an authorization into tokens. HubSpot accepts a code once.
func (c *Client) Exchange(ctx context.Context, app App, code string) (Tokens, error) {
	return c.tokens(ctx, url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {app.RedirectURL},
		"client_id": {app.ClientID}, "client_secret": {app.ClientSecret},
	})
}

// Refresh gets a new access token. The answer may have a new refresh token too.
func (c *Client) Refresh(ctx context.Context, app App, refresh string) (Tokens, error) {
	t, err := c.tokens(ctx, url.Values{
		"grant_type": {"refresh_token"}, "refresh_token": {refresh},
		"client_id": {app.ClientID}, "client_secret": {app.ClientSecret},
	})
	if err == nil && t.Refresh == "" {
		t.Refresh = refresh
	}
	return t, err
}

func (c *Client) tokens(ctx context.Context, form url.Values) (Tokens, error) {
	headers := map[string]string{"Content-Type": "application/x-www-form-urlencoded"}
	a := c.do(ctx, http.MethodPost, "/oauth/v1/token", []byte(form.Encode()), headers,
		form.Get("client_secret"), form.Get("refresh_token"), form.Get("code"))
	if !a.OK() {
		return Tokens{}, fmt.Errorf("requesting tokens: %w", &RefusedError{a})
	}
	var reply struct {
		Access  string  `json:"access_token"`
		Refresh string  `json:"refresh_token"`
		Expires float64 `json:"expires_in"`
	}
	if err := json.Unmarshal(a.Body, &reply); err != nil || reply.Access == "" || reply.Expires <= 0 {
		return Tokens{}, errors.New("requesting tokens: HubSpot's reply has no tokens")
	}
	return Tokens{reply.Access, reply.Refresh, time.Duration(min(reply.Expires, 1e8) * float64(time.Second))}, nil
}

// Whose returns the portal of a token.
func (c *Client) Whose(ctx context.Context, access string) (portal int64, err error) {
	a := c.do(ctx, http.MethodGet, "/oauth/v1/access-tokens/"+url.PathEscape(access), nil, nil, access)
	if !a.OK() {
		return 0, fmt.Errorf("looking up the portal of a token: %w", &RefusedError{a})
	}
	var reply struct {
		Portal int64 `json:"hub_id"`
	}
	if err := json.Unmarshal(a.Body, &reply); err != nil || reply.Portal <= 0 {
		return 0, errors.New("looking up the portal of a token: HubSpot's reply has no portal")
	}
	return reply.Portal, nil
}
