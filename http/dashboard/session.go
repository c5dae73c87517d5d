package dashboard

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"takt/http/edge"
	"takt/store"
)

const (
	sessionLife = 12 * time.Hour
	// sessionCookie has a prefix that makes browsers refuse it unless it is Secure,
	// for all paths and for this host only. plainCookie is for plain HTTP, see
	// Config.PlainSessions.
	sessionCookie = "__Host-takt"
	plainCookie   = "takt"
	maxName       = 64 // characters
)

// session is the content of the cookie; the server does not store it.
type session struct {
	edge.Session
	Expires int64 `json:"e"` // seconds since 1970
}

// Admin reports whether everything is allowed.
func (s *session) Admin() bool { return s != nil && s.Session.Admin() }

// sessionValue is the key of a request's checked session in its echo.Context.
const sessionValue = "takt session"

// sessionOf returns the session of a request; nil if it has none.
func sessionOf(c echo.Context) *session {
	s, _ := c.Get(sessionValue).(*session)
	return s
}

// sessions makes and checks cookies. They are valid on every controller with the same
// keys, and a change of the API key or of the admin key ends them.
type sessions struct {
	keys    *edge.Keys
	macs    [][]byte // keys of the signature: the first one signs, all of them check
	secure  bool     // visitors use HTTPS, as Config.PublicURL says
	plain   bool     // Config.PlainSessions
	origins *http.CrossOriginProtection
}

func newSessions(cfg Config, keys edge.Config, k *edge.Keys) *sessions {
	s := &sessions{
		keys: k, secure: strings.HasPrefix(cfg.PublicURL, "https://"), plain: cfg.PlainSessions,
		origins: http.NewCrossOriginProtection(),
	}
	if len(cfg.Secrets) == 0 {
		cfg.Secrets = [][]byte{[]byte(rand.Text())}
	}
	for _, secret := range cfg.Secrets {
		mac, err := hkdf.Key(sha256.New, slices.Concat(secret, []byte("\x00"+keys.APIKey+"\x00"+keys.AdminKey)), nil, "takt dashboard session 2", sha256.Size)
		if err != nil {
			panic(err) // the key's length is a constant
		}
		s.macs = append(s.macs, mac)
	}
	return s
}

func sign(payload string, mac []byte) string {
	h := hmac.New(sha256.New, mac)
	h.Write([]byte(payload))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// issue returns the cookie's value for a session.
func (s *sessions) issue(v session) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and a number always encode
	}
	payload := base64.RawURLEncoding.EncodeToString(raw)
	return payload + "." + sign(payload, s.macs[0])
}

// read returns the session in value; nil if value is invalid or expired.
func (s *sessions) read(value string, now time.Time) *session {
	payload, mac, ok := strings.Cut(value, ".")
	if !ok || !slices.ContainsFunc(s.macs, func(key []byte) bool { return hmac.Equal([]byte(mac), []byte(sign(payload, key))) }) {
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	v := &session{}
	if err != nil || json.Unmarshal(raw, v) != nil || now.Unix() >= v.Expires {
		return nil
	}
	if !v.Renew(s.keys) {
		return nil
	}
	return v
}

// of returns the session of a request. Its cookie counts only if the request comes
// from our own pages or from no page (a typed address), because other sites must not
// use it.
func (s *sessions) of(r *http.Request) *session {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
	case "":
		origin := edge.Header(r.Header, edge.HeaderOrigin)
		if origin == "" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			break
		}
		if u, err := url.Parse(origin); err != nil || u.Host == "" || u.Host != r.Host {
			return nil
		}
	default:
		return nil
	}
	name := plainCookie
	if s.safe(r) {
		name = sessionCookie
	}
	cookie, err := r.Cookie(name)
	if err != nil {
		return nil
	}
	return s.read(cookie.Value, time.Now())
}

// safe reports whether the browser accepts a Secure cookie: it speaks HTTPS with us
// or with our proxy, or to its own machine. A client with a false header only loses
// its own cookie.
func (s *sessions) safe(r *http.Request) bool {
	if r.TLS != nil || s.secure || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		return true
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// possible reports whether a session can begin.
func (s *sessions) possible(r *http.Request) bool { return s.safe(r) || s.plain }

// cookie returns the cookie with value; "" ends the session.
func (s *sessions) cookie(r *http.Request, value string) *http.Cookie {
	c := &http.Cookie{ //nolint:gosec // Secure but for what Config.PlainSessions allows
		Name: sessionCookie, Value: value, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: int(sessionLife.Seconds())}
	if !s.safe(r) {
		c.Name, c.Secure = plainCookie, false
	}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// begin checks a key and returns the session that it opens.
func (s *sessions) begin(key, name string) (v session, err error) {
	v = session{edge.Session{Name: strings.Join(strings.Fields(plain(store.Text(name))), " "), ID: rand.Text()[:10]}, time.Now().Add(sessionLife).Unix()}
	switch {
	case s.keys.Admin.Is(key):
		v.Role = edge.RoleAdmin
	case s.keys.API.Is(key):
		v.Role = edge.RoleAPI
	case s.keys.Named(key) != nil:
		v.Role, v.Key = edge.RoleKey, s.keys.Named(key).Name
		if !s.keys.Named(key).May(store.ScopeRead) {
			return v, store.NewError(store.MissingScope, "This key needs the scope read for the pages")
		}
	default:
		return v, store.NewError(store.Forbidden, "This is neither the API key nor the admin key")
	}
	if v.Name == "" || utf8.RuneCountInString(v.Name) > maxName {
		return v, edge.Invalid(fmt.Sprintf("Enter your name (up to %d characters): it appears in the audit log", maxName))
	}
	return v, nil
}

// loginData is the data of the login page.
type loginData struct {
	Next, Name, Error string
	Possible          bool
}

func (d *Dashboard) loginPage(ctx context.Context, c echo.Context) (any, error) {
	next := ownPath(c.QueryParam("next"), "")
	if d.sessions.of(c.Request()) != nil {
		return nil, c.Redirect(http.StatusSeeOther, cmp.Or(next, d.front))
	}
	return d.renderLogin(ctx, c, http.StatusOK, loginData{Next: next})
}

func (d *Dashboard) renderLogin(ctx context.Context, c echo.Context, status int, data loginData) (any, error) {
	data.Possible = d.sessions.possible(c.Request())
	return d.render(ctx, c, status, "login", &screen{Title: "Log in", Page: data})
}

// login handles POST /login.
func (d *Dashboard) login(ctx context.Context, c echo.Context) (any, error) {
	r := c.Request()
	if !d.sessions.possible(r) {
		return d.renderLogin(ctx, c, http.StatusForbidden, loginData{})
	}
	if err := d.server.Within(edge.RuleLogins, c, func() error { return readForm(r) }); err != nil { //nolint:contextcheck // within takes the context of the request
		return nil, err
	}
	next := ownPath(r.PostForm.Get("next"), d.front)
	v, err := d.sessions.begin(r.PostForm.Get("key"), r.PostForm.Get("name"))
	if err != nil {
		failure := edge.FailureOf(d.server.Wrong.Note(d.server.Addr(c), err, time.Now()))
		if edge.MeansWrongKey(err) {
			if err := d.server.Wrong.Slow(ctx, d.server.Addr(c), c.Response().Header()); err != nil {
				return nil, err
			}
		}
		message := failure.Message
		if edge.SetRetryAfter(c.Response().Header(), failure.RetryAfter); failure.RetryAfter > 0 {
			message += ": try again in " + c.Response().Header().Get("Retry-After") + " s"
		}
		return d.renderLogin(ctx, c, edge.StatusOf(failure.Code), loginData{Next: next, Name: r.PostForm.Get("name"), Error: message})
	}
	d.server.Log.Info().Str("actor", edge.Caller{Session: &v.Session, Remote: edge.RemoteHost(r), Addr: edge.Remote(r, d.server.Config.TrustedProxies).String()}.Actor()).Str("session", v.ID).Msg("login")
	c.SetCookie(d.sessions.cookie(r, d.sessions.issue(v)))
	return nil, c.Redirect(http.StatusSeeOther, next)
}

// logout handles POST /logout.
func (d *Dashboard) logout(_ context.Context, c echo.Context) (any, error) {
	c.SetCookie(d.sessions.cookie(c.Request(), ""))
	return nil, c.Redirect(http.StatusSeeOther, "/login")
}

// ownPath returns path if it is on this host and not the login, else otherwise,
// because a redirect must not lead to another site.
func ownPath(path, otherwise string) string {
	u, err := url.Parse(path)
	if err != nil || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n\t") ||
		u.Host != "" || u.Scheme != "" || strings.HasPrefix(u.Path, "/login") {
		return otherwise
	}
	return path
}
