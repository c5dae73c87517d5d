package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"takt/http/api"
	"takt/http/client"
	"takt/http/hubspottest"
)

const (
	throttlePortal   = 62515
	throttleAction   = 10860211
	throttleRate     = 10
	throttleWebhooks = 200
	// publicHook is what HubSpot calls the controller's hook.
	publicHook = "https://takt.example.com"
)

// throttle plays the throttle's demo: a stand-in for HubSpot installs a portal and
// fires webhooks, and its record of the completions shows how they were paced.
func throttle(ctx context.Context, cfg config) error {
	return play(ctx, cfg, func(s *stage) []step { return []step{s.pace} })
}

func (s *stage) pace(ctx context.Context) error {
	hs := hubspottest.New(hubspottest.Config{})
	hs.AddPortal(throttlePortal)
	base, stop := hs.Start()
	defer stop()
	var err error
	if s.controller, err = s.Controller(ctx, "controller", append(hs.Env(base), "TAKT_PUBLIC_URL="+publicHook)...); err != nil {
		return err
	}
	s.say("controller   %s, HubSpot's stand-in at %s, up after %s", s.controller.URL, base, time.Since(s.began).Round(10*time.Millisecond))
	return s.paceAll(ctx, hs)
}

// paceAll installs, configures, fires and watches.
func (s *stage) paceAll(ctx context.Context, hs *hubspottest.HubSpot) error {
	if err := hs.Install(ctx, s.controller.URL+"/api/oauth/authorize", s.controller.URL+"/api/oauth/callback", throttlePortal); err != nil {
		return err
	}
	set, err := client.Call(ctx, s.controller.Client, api.SetRate, api.SetRateIn{ThrottleConfig: api.ThrottleConfig{
		PortalID: throttlePortal, ActionID: throttleAction, MaxThroughput: throttleRate, TimePeriod: 1, TimeUnit: "second",
	}})
	if err != nil {
		return err
	}
	s.say("portal       %d installed the app; action %d may have %d completions per %s", throttlePortal, throttleAction, set.MaxThroughput, set.TimeUnit)
	begin := time.Now()
	if err := s.fireAll(ctx, hs); err != nil {
		return err
	}
	s.say("webhooks     %d signed ones were acknowledged durably in %s", throttleWebhooks, time.Since(begin).Round(time.Millisecond))
	shown := 0
	err = s.controller.Await(ctx, "all completions", func() string { return fmt.Sprintf("%d completed", hs.Distinct()) }, func(context.Context) (bool, error) {
		n := hs.Distinct()
		for shown+50 <= n {
			shown += 50
			s.say("%12s %d completed", time.Since(begin).Round(100*time.Millisecond), shown)
		}
		return n >= throttleWebhooks, nil
	})
	if err != nil {
		return err
	}
	return s.judge(hs.Completions())
}

// fireAll fires all webhooks, several at once.
func (s *stage) fireAll(ctx context.Context, hs *hubspottest.HubSpot) error {
	c := &http.Client{}
	defer c.CloseIdleConnections()
	const path = "/api/hubspot/action"
	var all errgroup.Group
	all.SetLimit(throttleWebhooks / 4)
	for i := range throttleWebhooks {
		all.Go(func() error {
			status, reply, err := hs.Fire(ctx, c, s.controller.URL+path, publicHook+path, hubspottest.Webhook{
				PortalID: throttlePortal, ActionID: throttleAction, WorkflowID: 192814114, CallbackID: fmt.Sprintf("ap-%d-%d", throttlePortal, i),
			})
			if err == nil && status != http.StatusNoContent {
				err = fmt.Errorf("webhook %d was answered with %d: %s", i, status, reply)
			}
			return err
		})
	}
	return all.Wait()
}

// judge shows the record second by second, and checks it.
func (s *stage) judge(list []hubspottest.Completion) error {
	first := list[0].At
	perSecond := map[int]int{}
	last := 0
	for _, c := range list {
		last = int(c.At.Sub(first) / time.Second)
		perSecond[last]++
	}
	s.say("\ncompletions in each second, as HubSpot's stand-in recorded them:")
	for i := range last + 1 {
		s.say("%4d s  %2d %s", i, perSecond[i], strings.Repeat("#", perSecond[i]))
	}
	most := hubspottest.MostInAnyWindow(list, time.Second)
	if len(list) != throttleWebhooks || most > throttleRate {
		return fmt.Errorf("%d completions, up to %d in a window of one second; wanted %d and at most %d", len(list), most, throttleWebhooks, throttleRate)
	}
	s.say("\ndone in %s: %d acknowledged, %d completed, never more than %d in any window of one second",
		time.Since(s.began).Round(100*time.Millisecond), throttleWebhooks, len(list), most)
	return nil
}
