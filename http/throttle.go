package http

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
	"takt/store/hubspot"
)

const (
	// maxAction is how many bytes an action may have, actionTimeout how long its body may
	// take.
	maxAction     = 64 << 10
	actionTimeout = 5 * time.Second
)

// throttle accepts HubSpot's actions, installs takt in its portals, and sets rates.
type throttle struct {
	edge     *edge.Server
	cfg      Config
	audit    *audit
	throttle Throttle
	store    ThrottleStore
	oauth    OAuth
}

func (h *throttle) routes() []edge.Route {
	action, install := h.edge.Of(api.TakeAction.Route), edge.OnRequest(h.edge, api.InstallPortal, h.install)
	action.Serve, install.Serve = h.action, h.serveInstall
	return []edge.Route{
		action, install,
		edge.OnRequest(h.edge, api.AuthorizePortal, h.authorize),
		edge.OnAs(h.edge, api.SetRate, h.setRate),
		edge.OnList(h.edge, api.ListRates, h.listRates),
		edge.On(h.edge, api.ShowRate, h.showRate),
		edge.On(h.edge, api.DeleteRate, h.deleteRate),
	}
}

// action handles POST /api/hubspot/action, which accepts an action of HubSpot. It answers
// when the action is durable, because HubSpot does not resend the action after the reply.
// Anybody can send a request here. So a request with a bad header is refused before its
// body is read, and a slow body takes no place from others.
func (h *throttle) action(c echo.Context, r *edge.Route) error {
	req := c.Request()
	unsigned := func(err error) error { return store.Wrap(store.Unauthorized, "Invalid signature", err) }
	if err := hubspot.Check(h.cfg.HubSpotSecret, req.Header, time.Now()); err != nil {
		return unsigned(err)
	}
	var body []byte
	err := h.edge.Within(edge.RulePublicBodies, c, func() (err error) {
		if b := edge.Watched(req); b != nil {
			b.End = time.Now().Add(actionTimeout)
		}
		body, err = edge.ReadBody(c)
		return err
	})
	if err != nil {
		return err
	}
	if err := hubspot.Verify(h.cfg.HubSpotSecret, req.Method, hubspot.URI(h.cfg.PublicURL, req), body, req.Header, time.Now()); err != nil {
		return unsigned(err)
	}
	h.edge.Trust(c, edge.Signature, time.Now())
	action, err := hubspot.ParseAction(body)
	if err != nil {
		return err
	}
	action.Expires = h.cfg.HubSpotExpiration
	return h.edge.OpenTo(c, r, func(ctx context.Context, _ echo.Context) (any, error) {
		accepted, err := h.throttle.Accept(ctx, action)
		return h.actionReply(accepted), err
	})
}

// actionReply is the state of an action as HubSpot reads it. Without HubSpotBlock the
// reply to a waiting action is 204, which HubSpot takes for SUCCESS.
func (h *throttle) actionReply(a store.Acceptance) any {
	reply := hubspot.Reply{}
	switch {
	case (a.State == store.ActionWaiting || a.State == store.ActionCompleted) && !h.cfg.HubSpotBlock:
		return edge.Reply{Status: http.StatusNoContent}
	case a.State == store.ActionWaiting:
		reply.OutputFields = hubspot.OutputFields{State: hubspot.Block, Expiration: hubspot.Duration(a.Remaining)}
	case a.State == store.ActionCompleted:
		reply.OutputFields.State = hubspot.Success
	default: // abandoned, or too late: the workflow should continue
		reply.OutputFields.State = hubspot.FailContinue
	}
	return reply
}

// installCookie ties an installation to the browser that began it, so that no one can be
// tricked into finishing another's.
const installCookie = "takt_install"

func (h *throttle) setInstallCookie(c echo.Context, secret string, age int) {
	c.SetCookie(&http.Cookie{ //nolint:gosec // Secure wherever there is TLS
		Name: installCookie, Value: secret, Path: "/api/oauth", MaxAge: age, HttpOnly: true,
		Secure: c.Request().TLS != nil || strings.HasPrefix(h.cfg.PublicURL, "https://"),
		// Lax, because HubSpot sends the browser back from another site.
		SameSite: http.SameSiteLaxMode,
	})
}

// authorize handles GET /api/oauth/authorize: it redirects the installer to HubSpot's
// page.
func (h *throttle) authorize(ctx context.Context, c echo.Context, _ api.None) (any, error) {
	at, secret, err := h.oauth.Authorize(ctx)
	if err != nil {
		return nil, err
	}
	h.setInstallCookie(c, secret, 600)
	return nil, c.Redirect(http.StatusFound, at)
}

// serveInstall answers outside of the places, because an installation waits for HubSpot. A
// few run at once.
func (h *throttle) serveInstall(c echo.Context, r *edge.Route) error {
	return h.edge.Within(edge.RuleInstallations, c, func() error { return h.edge.Answer(c.Request().Context(), c, r.Handle) })
}

// install handles GET /api/oauth/callback, to which HubSpot redirects the installer.
func (h *throttle) install(ctx context.Context, c echo.Context, in api.InstallPortalIn) (any, error) {
	secret := ""
	if cookie, err := c.Cookie(installCookie); err == nil {
		secret = cookie.Value
	}
	portal, err := h.oauth.Install(ctx, in.State, secret, in.Code)
	if err == nil {
		h.setInstallCookie(c, "", -1)
	}
	return api.Installed{Status: "installed", PortalID: portal}, err
}

// rate is a body that is read leniently, see [api.ReadThrottleConfig].
type rate map[string]json.RawMessage

// setRate handles POST /api/config.
func (h *throttle) setRate(ctx context.Context, in rate) (api.ThrottleConfig, error) {
	config, err := api.ReadThrottleConfig(in)
	if err != nil {
		return api.ThrottleConfig{}, err
	}
	var why string
	if raw := in["reason"]; raw != nil && (json.Unmarshal(raw, &why) != nil || len(why) > api.MaxReason) {
		return api.ThrottleConfig{}, edge.Invalid("reason must be a text of at most 1000 bytes")
	}
	return h.saveRate(ctx, config, why)
}

// steerRate is setRate for a page.
func (h *throttle) steerRate(ctx context.Context, in api.SetRateIn) (api.ThrottleConfig, error) {
	config := store.ThrottleConfig{
		PortalID: in.PortalID, ActionID: in.ActionID, MaxThroughput: in.MaxThroughput,
		TimePeriod: in.TimePeriod, TimeUnit: store.TimeUnit(in.TimeUnit),
	}
	if err := config.Validate(); err != nil {
		return api.ThrottleConfig{}, err
	}
	return h.saveRate(ctx, config, in.Reason)
}

// saveRate sets a rate, which also applies to waiting actions.
func (h *throttle) saveRate(ctx context.Context, config store.ThrottleConfig, why string) (api.ThrottleConfig, error) {
	var saved store.ThrottleConfig
	e := entry{action: "set rate", target: fmt.Sprintf("%d/%d", config.PortalID, config.ActionID), reason: why, detail: change(api.NewThrottleConfig(config))}
	err := h.audit.do(ctx, e, func(ctx context.Context) (err error) {
		saved, err = h.throttle.PutConfig(ctx, config)
		return err
	})
	return api.NewThrottleConfig(saved), err
}

func (h *throttle) listRates(_ context.Context, in api.ListRatesIn) (edge.List, error) {
	read := func(ctx context.Context, p store.Page) ([]store.ThrottleConfig, store.Cursor, error) {
		return h.store.Configs(ctx, int64(in.PortalID), p)
	}
	return edge.ListOf(in.Limit, in.Cursor, read, api.NewThrottleConfig).In("configs", false), nil
}

func (h *throttle) showRate(ctx context.Context, in api.RatePath) (api.ThrottleConfig, error) {
	config, err := h.store.Config(ctx, int64(in.PortalID), int64(in.ActionID))
	return api.NewThrottleConfig(config), err
}

// deleteRate has new actions refused; waiting ones keep their rate.
func (h *throttle) deleteRate(ctx context.Context, in api.DeleteRateIn) (api.None, error) {
	e := entry{"delete rate", fmt.Sprintf("%d/%d", in.PortalID, in.ActionID), in.Reason, map[string]any{}}
	return api.None{}, h.audit.do(ctx, e, func(ctx context.Context) error {
		return h.throttle.DeleteConfig(ctx, int64(in.PortalID), int64(in.ActionID))
	})
}
