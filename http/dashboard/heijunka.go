package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"takt/http/edge"
	"takt/store"
)

// loadData is the data of the load levelling page.
type loadData struct {
	store.HeijunkaStatus
	Limits    []edge.LimitUse // all but the pools
	Summary   string
	Plots     []plot
	PoolPlots map[string][]plot
	Changes   string
}

func (d *Dashboard) loadHeijunka(_ context.Context, v *view) (any, error) {
	status, now := d.deps.Heijunka.Status(), time.Now()
	data := loadData{HeijunkaStatus: status, Limits: d.server.LimitUses(), PoolPlots: map[string][]plot{}}
	data.Summary = summary(status, slices.Concat(d.deps.History.over(figRejectedRegular, 0, now), d.deps.History.over(figRejectedHard, 0, now)))
	over, draw := d.plotters(v, now)
	data.Plots = []plot{
		draw("load", "Load and its limits", "requests", "Good below the soft limit. At the hard limit all further requests are refused.", over("admitted", figLoad), over("soft limit", figSoft), over("hard limit", figHard)),
		draw("rejected", "Refused", "requests a minute", "0 is good. Clients try refused requests again, so a short peak delays work and loses none.", over("by the regular limit", figRejectedRegular), over("by the hard limit", figRejectedHard)),
		draw("balance", "Balance of the pools", "", "1 is even. Below 0.8 takt moves a place from the least used pool to the most used.", over("balance", figBalance)),
		draw("surge", "Demand", "requests per place", "Good near its average of the last minute. 10 times that is a burst, and takt adds places for some minutes.", over("demand", figDemand), over("average", figBaseline)),
	}
	for _, pool := range data.Pools {
		if f, ok := d.deps.History.pool(pool.Name); ok {
			data.PoolPlots[pool.Name] = []plot{
				draw("pool-"+pool.Name, pool.Name+": places", "", "Good while no request waits. takt adds places when more than 80 % are used.", over("used", f+poolBusy), over("places", f+poolPlaces), over("requests waiting", f+poolWaiting)),
				draw("latency-"+pool.Name, pool.Name+": time of a request", "ms", "Lower is better. A rise without more load means that the database or the disk is slow.", over("average", f+poolLatency)),
			}
		}
	}
	if changed := strings.TrimSpace(string(data.Changed)); changed != "{}" && json.Valid(data.Changed) {
		data.Changes = changed
	}
	return data, nil
}

// summary describes the state of levelling in a sentence. refused is how many requests a minute were
// refused in each ten seconds of the last hour, by each rule.
func summary(s store.HeijunkaStatus, refused []float32) string {
	if !s.Enabled {
		return "Load levelling is switched off: requests pass without limits."
	}
	total := 0.0
	for _, v := range refused {
		if f := float64(v); !math.IsNaN(f) {
			total += f / 6
		}
	}
	what := "nothing"
	if total >= 1 {
		what = plural(int(math.Round(total)), "request")
	}
	level := map[string]string{"normal": "Normal", "alert": "Busy", "critical": "Overloaded"}[s.Regulator.Level]
	return fmt.Sprintf("%s: %s; %s refused in the last hour.", level, s.Regulator.Admitted(), what)
}
