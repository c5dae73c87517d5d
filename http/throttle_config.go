package http

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

func installedReply(portal int64) api.Installed {
	return api.Installed{Status: "installed", PortalID: portal}
}

// configBody is the body of POST /api/config. Each member has the names that
// clients have used for it.
type configBody map[string]json.RawMessage

// field returns the first of names that is there.
func (b configBody) field(names ...string) json.RawMessage {
	for _, n := range names {
		if v := b[n]; !absent(v) {
			return v
		}
	}
	return nil
}

// whole reads a number, or a text that is one: HubSpot's own forms send texts.
func whole(raw json.RawMessage) (int64, bool) {
	text := strings.TrimSpace(string(raw))
	var quoted string
	if json.Unmarshal(raw, &quoted) == nil {
		text = strings.TrimSpace(quoted)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n > 0
}

// readConfig reads and checks a rate.
func readConfig(b configBody) (c store.ThrottleConfig, err error) {
	number := func(max int64, names ...string) (n int64) {
		n, ok := whole(b.field(names...))
		if (!ok || n > max) && err == nil {
			err = invalid(names[0] + " must be a positive integer")
		}
		return n
	}
	const large = 1 << 62
	c.PortalID = number(large, "portal_id", "portalId")
	c.ActionID = number(large, "action_id", "actionId", "actionDefinitionId")
	c.MaxThroughput = int(number(1<<31-1, "max_throughput", "maxThroughput", "maxThroughPut"))
	c.TimePeriod = int(number(1<<31-1, "time_period", "timePeriod", "time"))
	if err != nil {
		return c, err
	}
	var unit string
	if json.Unmarshal(b.field("time_unit", "timeUnit", "period"), &unit) != nil {
		return c, invalid("time_unit must be seconds, minutes, hours or days")
	}
	var ok bool
	if c.TimeUnit, ok = store.ParseTimeUnit(unit); !ok {
		return c, invalid("time_unit must be seconds, minutes, hours or days")
	}
	return c, c.Validate()
}

// handleConfigPut handles POST /api/config: it sets a rate, also for what waits.
func (s *Server) handleConfigPut(ctx context.Context, c echo.Context) error {
	var body configBody
	if _, err := s.readJSON(c, &body); err != nil {
		return err
	}
	config, err := readConfig(body)
	if err != nil {
		return err
	}
	saved, err := s.deps.Throttle.PutConfig(ctx, config)
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, configReply(saved))
}

func configReply(c store.ThrottleConfig) api.ThrottleConfig {
	return api.ThrottleConfig{
		PortalID: c.PortalID, ActionID: c.ActionID, MaxThroughput: c.MaxThroughput,
		TimePeriod: c.TimePeriod, TimeUnit: string(c.TimeUnit), UpdatedAt: api.FormatTime(c.UpdatedAt),
	}
}

// pathNumber reads a path parameter that is a positive integer.
func pathNumber(c echo.Context, name string) (int64, error) {
	n, err := strconv.ParseInt(c.Param(name), 10, 64)
	if err != nil || n <= 0 {
		return 0, invalid(name + " must be a positive integer")
	}
	return n, nil
}

func configPath(c echo.Context) (portal, action int64, err error) {
	if portal, err = pathNumber(c, "portal_id"); err == nil {
		action, err = pathNumber(c, "action_id")
	}
	return portal, action, err
}

// handleConfigList handles GET /api/config/:portal_id.
func (s *Server) handleConfigList(ctx context.Context, c echo.Context) error {
	portal, err := pathNumber(c, "portal_id")
	if err != nil {
		return err
	}
	list, err := s.deps.ThrottleStore.Configs(ctx, portal)
	if err != nil {
		return err
	}
	out := api.ThrottleConfigs{Configs: []api.ThrottleConfig{}}
	for _, config := range list {
		out.Configs = append(out.Configs, configReply(config))
	}
	return s.reply(c, http.StatusOK, out)
}

// handleConfig handles GET /api/config/:portal_id/:action_id.
func (s *Server) handleConfig(ctx context.Context, c echo.Context) error {
	portal, action, err := configPath(c)
	if err != nil {
		return err
	}
	config, err := s.deps.ThrottleStore.Config(ctx, portal, action)
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, configReply(config))
}

// handleConfigDelete handles DELETE /api/config/:portal_id/:action_id: new actions
// are refused, those that wait keep their rate.
func (s *Server) handleConfigDelete(ctx context.Context, c echo.Context) error {
	portal, action, err := configPath(c)
	if err != nil {
		return err
	}
	if err := s.deps.Throttle.DeleteConfig(ctx, portal, action); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
