package hubspottest

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// say answers with v as JSON.
func say(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the client has disconnected
}

// refuse answers with an error in HubSpot's format.
func refuse(w http.ResponseWriter, status int, message string, more ...string) {
	e := map[string]string{"status": "error", "message": message, "correlationId": rand.Text()}
	for pair := range slices.Chunk(more, 2) {
		e[pair[0]] = pair[1]
	}
	say(w, status, e)
}

// authorize is the page on which a user agrees to an installation; here, every user
// agrees. ?portal= names the account. It may be left out if there is only one.
func (h *HubSpot) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	h.mu.Lock()
	defer h.mu.Unlock()
	id, _ := strconv.ParseInt(q.Get("portal"), 10, 64)
	if q.Get("portal") == "" && len(h.portals) == 1 {
		for only := range h.portals {
			id = only
		}
	}
	back, err := url.Parse(q.Get("redirect_uri"))
	switch {
	case q.Get("client_id") != h.cfg.ClientID:
		refuse(w, http.StatusBadRequest, "unknown client_id")
	case err != nil || back.Host == "":
		refuse(w, http.StatusBadRequest, "redirect_uri is not valid")
	case !strings.Contains(" "+q.Get("scope")+" ", " automation "):
		refuse(w, http.StatusBadRequest, "the scope automation is missing")
	case h.portals[id] == nil:
		refuse(w, http.StatusBadRequest, "no such portal")
	default:
		code := h.secret("code-")
		h.codes[code] = grant{id, q.Get("redirect_uri")}
		values := back.Query()
		values.Set("code", code)
		values.Set("state", q.Get("state"))
		back.RawQuery = values.Encode()
		http.Redirect(w, r, back.String(), http.StatusFound) //nolint:gosec // sending people back is what this page is for
	}
}

// secret returns a new random secret. The caller holds h.mu.
func (h *HubSpot) secret(kind string) string {
	s := kind + rand.Text()
	if kind == "access-" {
		s += strings.Repeat(rand.Text(), 11) // HubSpot's are long
	}
	h.given = append(h.given, s)
	return s
}

// about returns the secrets for an error's text if Echo is set, else "".
func (h *HubSpot) about(secrets ...string) string {
	if !h.cfg.Echo {
		return ""
	}
	return ": " + strings.Join(secrets, ", ")
}

// token issues tokens for a code or a refresh token.
func (h *HubSpot) token(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if err := r.ParseForm(); err != nil {
		refuse(w, http.StatusBadRequest, "not a form")
		return
	}
	f := r.PostForm
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.Get("client_id") != h.cfg.ClientID || subtle.ConstantTimeCompare([]byte(f.Get("client_secret")), []byte(h.cfg.ClientSecret)) != 1 {
		refuse(w, http.StatusUnauthorized, "client is not valid"+h.about(f.Get("client_secret")))
		return
	}
	switch f.Get("grant_type") {
	case "authorization_code":
		g, ok := h.codes[f.Get("code")]
		delete(h.codes, f.Get("code")) // a code is valid once
		if !ok || g.redirect != f.Get("redirect_uri") {
			refuse(w, http.StatusBadRequest, "missing or unknown auth code"+h.about(f.Get("code"), f.Get("client_secret")), "status", "BAD_AUTH_CODE")
			return
		}
		h.portals[g.portal].refresh = h.secret("refresh-")
		h.give(w, h.portals[g.portal])
	case "refresh_token":
		for _, p := range h.portals {
			if p.refresh != "" && p.refresh == f.Get("refresh_token") {
				p.refreshes++
				if h.cfg.Rotate {
					p.refresh = h.secret("refresh-")
				}
				h.give(w, p)
				return
			}
		}
		refuse(w, http.StatusBadRequest, "missing or unknown refresh token"+h.about(f.Get("refresh_token"), f.Get("client_secret")), "status", "BAD_REFRESH_TOKEN")
	default:
		refuse(w, http.StatusBadRequest, "unknown grant_type")
	}
}

// give answers with a new access token.
func (h *HubSpot) give(w http.ResponseWriter, p *portal) {
	access := h.secret("access-")
	p.access[access] = time.Now().Add(h.cfg.TokenLife)
	say(w, http.StatusOK, map[string]any{
		"access_token": access, "refresh_token": p.refresh, "expires_in": h.cfg.TokenLife.Seconds(), "token_type": "bearer",
	})
}

// whose answers with the portal and the app of a token.
func (h *HubSpot) whose(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id, _ := h.owner(r.PathValue("token"))
	if id == 0 {
		refuse(w, http.StatusNotFound, "unknown token"+h.about(r.PathValue("token")))
		return
	}
	say(w, http.StatusOK, map[string]any{
		"token": r.PathValue("token"), "hub_id": id, "user": "somebody@example.com", "user_id": 1, "app_id": 1,
		"hub_domain": "example.com", "scopes": []string{"automation", "oauth"}, "expires_in": 1800, "token_type": "access",
	})
}

// owner returns the portal of a valid access token, else 0 and nil.
func (h *HubSpot) owner(token string) (int64, *portal) {
	for id, p := range h.portals {
		if until, ok := p.access[token]; ok && time.Now().Before(until) {
			return id, p
		}
	}
	return 0, nil
}
