package http_test

import (
	"encoding/json"
	"strings"

	"takt/http/api"
)

const (
	deploymentBody = `{"source_org":"a","target_org":"b","token":"t"}`
	noDeployment   = "Deployment not found"
)

// deployed makes a request about a deployment that is begun for it, after the
// given orders; ID in the path stands for its own.
func deployed(method, path string, orders ...string) func(*bundle) reply {
	return func(b *bundle) reply {
		var d api.Deployment
		r := post("/api/deployments", deploymentBody, "X-API-Key", apiKey)(b)
		if err := json.Unmarshal([]byte(r.body), &d); err != nil {
			return r
		}
		for _, order := range orders {
			if r := posted("/api/deployments/"+d.ID+"/"+order, "X-API-Key", apiKey)(b); r.status != 200 {
				return r
			}
		}
		return asking(method, strings.ReplaceAll(path, "ID", d.ID), "", []string{"X-API-Key", apiKey})(b)
	}
}

func deploymentContract() map[string][]answer {
	const all, one = "/api/deployments", "/api/deployments/:id"
	unknown := func(method, path string) answer {
		return answer{404, noDeployment, asking(method, strings.ReplaceAll(path, ":id", "nobody"), "", []string{"X-API-Key", apiKey})}
	}
	routes := map[string][]answer{
		"POST " + all: {
			{202, "", post(all, deploymentBody, "X-API-Key", apiKey)},
			{400, "Invalid request: source_org and target_org required", post(all, "", "X-API-Key", apiKey)},
			{400, "Invalid request: source_org must be the name of an organisation", post(all, "{}", "X-API-Key", apiKey)},
			{400, "Invalid JSON body", post(all, "{", "X-API-Key", apiKey)},
		},
		"GET " + all: {
			{200, "", get(all, "X-API-Key", apiKey)},
			{400, "Invalid request: limit must be 1 to 500", get(all+"?limit=501", "X-API-Key", apiKey)},
		},
		"GET " + one:              {{200, "", deployed("GET", "/api/deployments/ID")}, unknown("GET", one)},
		"GET " + one + "/events":  {{200, "", deployed("GET", "/api/deployments/ID/events", "cancel")}, unknown("GET", one+"/events")},
		"POST " + one + "/cancel": {{200, "", deployed("POST", "/api/deployments/ID/cancel")}, unknown("POST", one+"/cancel")},
		"POST " + one + "/pause":  {{200, "", deployed("POST", "/api/deployments/ID/pause")}, unknown("POST", one+"/pause")},
		"POST " + one + "/resume": {{200, "", deployed("POST", "/api/deployments/ID/resume", "pause")}, unknown("POST", one+"/resume")},
		"POST " + one + "/retry":  {{200, "", deployed("POST", "/api/deployments/ID/retry", "cancel")}, unknown("POST", one+"/retry")},
	}
	for path, conflict := range map[string]struct {
		text   string
		orders []string
	}{
		"/cancel": {"Deployment is cancelled already", []string{"cancel"}},
		"/pause":  {"Deployment is paused", []string{"pause"}},
		"/resume": {"Deployment is planning, not paused", nil},
		"/retry":  {"Nothing to try again", nil},
	} {
		route := "POST " + one + path
		routes[route] = append(routes[route], answer{409, conflict.text, deployed("POST", "/api/deployments/ID"+path, conflict.orders...)})
	}
	return routes
}
