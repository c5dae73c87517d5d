package http

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/hubspot"
	"takt/store"
)

// throttle takes HubSpot's actions, installs takt in its portals, and keeps the
// rates.
type throttle struct {
	*shared
	audit    *audit
	throttle Throttle
	store    ThrottleStore
	oauth    OAuth
}

// action handles POST /api/hubspot/action: HubSpot hands an action over. It is
// answered when the action is durable, because HubSpot forgets it with the answer.
func (h *throttle) action(ctx context.Context, c echo.Context) (any, error) {
	body, err := readBody(c)
	if err != nil {
		return nil, err
	}
	r := c.Request()
	if err := hubspot.Verify(h.cfg.HubSpotSecret, r.Method, hubspot.URI(h.cfg.PublicURL, r), body, r.Header, time.Now()); err != nil {
		return nil, store.Wrap(store.Unauthorized, "Invalid signature", err)
	}
	action, err := hubspot.ParseAction(body)
	if err != nil {
		return nil, err
	}
	action.Expires = h.cfg.HubSpotExpiration
	accepted, err := h.throttle.Accept(ctx, action)
	return h.actionReply(accepted), err
}

// actionReply shows HubSpot the state of an action. Without HubSpotBlock a waiting
// one is acknowledged with 204, in which HubSpot reads SUCCESS.
func (h *throttle) actionReply(a store.Acceptance) any {
	reply := hubspot.Reply{}
	switch {
	case (a.State == store.ActionWaiting || a.State == store.ActionCompleted) && !h.cfg.HubSpotBlock:
		return answer{status: http.StatusNoContent}
	case a.State == store.ActionWaiting:
		reply.OutputFields = hubspot.OutputFields{State: hubspot.Block, Expiration: hubspot.Duration(a.Remaining)}
	case a.State == store.ActionCompleted:
		reply.OutputFields.State = hubspot.Success
	default: // given up, or too late: the workflow is to go on
		reply.OutputFields.State = hubspot.FailContinue
	}
	return reply
}

// authorize handles GET /api/oauth/authorize: it sends an installer to HubSpot's
// page.
func (h *throttle) authorize(ctx context.Context, c echo.Context) (any, error) {
	at, err := h.oauth.Authorize(ctx)
	if err != nil {
		return nil, err
	}
	return nil, c.Redirect(http.StatusFound, at)
}

// install handles GET /api/oauth/callback, to which HubSpot sends the installer
// back.
func (h *throttle) install(ctx context.Context, c echo.Context) (any, error) {
	portal, err := h.oauth.Install(ctx, c.QueryParam("state"), c.QueryParam("code"))
	return api.Installed{Status: "installed", PortalID: portal}, err
}

// putConfig handles POST /api/config: it sets a rate, also for what waits.
func (h *throttle) putConfig(ctx context.Context, c echo.Context) (any, error) {
	var body map[string]json.RawMessage
	if _, err := readJSON(c, &body); err != nil {
		return nil, err
	}
	config, err := api.ReadThrottleConfig(body)
	if err != nil {
		return nil, err
	}
	var saved store.ThrottleConfig
	e := entry{action: "set rate", target: fmt.Sprintf("%d/%d", config.PortalID, config.ActionID), detail: change(api.NewThrottleConfig(config))}
	err = h.audit.audited(ctx, c, e, func(ctx context.Context) (err error) {
		saved, err = h.throttle.PutConfig(ctx, config)
		return err
	})
	return api.NewThrottleConfig(saved), err
}

func configPath(c echo.Context) (portal, action int64, err error) {
	if portal, err = positive("portal_id", c.Param("portal_id")); err == nil {
		action, err = positive("action_id", c.Param("action_id"))
	}
	return portal, action, err
}

func (h *throttle) listConfigs(ctx context.Context, c echo.Context) (any, error) {
	portal, err := positive("portal_id", c.Param("portal_id"))
	if err != nil {
		return nil, err
	}
	list, err := h.store.Configs(ctx, portal)
	return api.ThrottleConfigs{Configs: each(list, api.NewThrottleConfig)}, err
}

func (h *throttle) showConfig(ctx context.Context, c echo.Context) (any, error) {
	portal, action, err := configPath(c)
	if err != nil {
		return nil, err
	}
	config, err := h.store.Config(ctx, portal, action)
	return api.NewThrottleConfig(config), err
}

// deleteConfig handles DELETE /api/config/:portal_id/:action_id: new actions are
// refused, those that wait keep their rate.
func (h *throttle) deleteConfig(ctx context.Context, c echo.Context) (any, error) {
	portal, action, err := configPath(c)
	if err != nil {
		return nil, err
	}
	return answer{status: http.StatusNoContent}, h.throttle.DeleteConfig(ctx, portal, action)
}
