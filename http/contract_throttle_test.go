package http_test

import (
	"net/http"
)

const noRate = "Configuration not found"

// signed makes a request as HubSpot does.
func signed(body, secret string) func(*bundle) reply {
	return func(b *bundle) reply { return b.fire(body, secret) }
}

// configured makes a request when a rate is set.
func configured(do func(*bundle) reply) func(*bundle) reply {
	return func(b *bundle) reply {
		if r := post("/api/config", tenASecond, "X-API-Key", apiKey)(b); r.status != http.StatusOK {
			return r
		}
		return do(b)
	}
}

// stay is get without following where the answer leads.
func stay(path string) func(*bundle) reply {
	return func(b *bundle) reply {
		c := *b.client
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		return send(b.t, &c, http.MethodGet, b.url+path, nil, nil)
	}
}

func throttleContract() map[string][]answer {
	const action, list, one = "/api/hubspot/action", "/api/config/:portal_id", "/api/config/:portal_id/:action_id"
	body := string(webhook("c1").Body())
	wrong := "Invalid request: action_id must be a positive integer"
	routes := map[string][]answer{
		"POST /api/config": {
			{200, "", post("/api/config", tenASecond, "X-API-Key", apiKey)},
			{400, "Invalid request: portal_id must be a positive integer", post("/api/config", "{}", "X-API-Key", apiKey)},
			{400, "Invalid JSON body", post("/api/config", "{", "X-API-Key", apiKey)},
		},
		"GET " + list: {
			{200, "", get("/api/config/1", "X-API-Key", apiKey)},
			{400, "Invalid request: portal_id must be a positive integer", get("/api/config/x", "X-API-Key", apiKey)},
		},
		"GET " + one: {
			{200, "", configured(get("/api/config/62515/7", "X-API-Key", apiKey))},
			{400, wrong, get("/api/config/1/x", "X-API-Key", apiKey)},
			{404, noRate, get("/api/config/1/2", "X-API-Key", apiKey)},
		},
		"DELETE " + one: {
			{204, "", configured(erase("/api/config/62515/7"))},
			{400, wrong, erase("/api/config/1/x")},
			{404, noRate, erase("/api/config/1/2")},
		},
	}
	routes["POST "+action] = []answer{
		{204, "", configured(signed(body, clientSecret))},
		{400, "No configuration for this portal and action", func(b *bundle) reply {
			erase("/api/config/62515/7")(b)
			return b.fire(body, clientSecret)
		}},
		{400, "Invalid JSON body", signed("{", clientSecret)},
		{401, "Invalid signature", signed(body, "another secret")},
		{401, "Invalid signature", post(action, body)},
	}
	routes["GET /api/oauth/authorize"] = []answer{{302, "", stay("/api/oauth/authorize")}}
	routes["GET /api/oauth/callback"] = []answer{
		{200, "", func(b *bundle) reply {
			return b.send("GET", "/api/oauth/callback?state=s&code=c", map[string]string{"Cookie": "takt_install=browser"}, "")
		}},
		{400, "Invalid request: state is unknown, too old or another browser's: begin again", get("/api/oauth/callback?state=x&code=c")},
	}
	return routes
}
