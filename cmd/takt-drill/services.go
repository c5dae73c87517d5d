package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/http/githubtest"
	"takt/http/hubspottest"
	"takt/store"
)

const (
	portal, action = 62515, 10860211
	publicURL      = "https://takt.example.com"
	hookPath       = "/api/hubspot/action"
	repositories   = 5
	forgeToken     = "token-of-the-drill"
)

// services are what takt does beside builds, with stand-ins for HubSpot and GitHub.
type services struct {
	hubspot *hubspottest.HubSpot
	forge   *githubtest.Server
	base    [2]string // where they are
	stop    []func()
	sent    int // webhooks that were acknowledged
}

func startServices(ctx context.Context, dir string) *services {
	forge := must.Get(githubtest.New(githubtest.Config{Dir: filepath.Join(dir, "forge"), Tokens: []string{forgeToken}}))
	forge.AddOrg("source")
	for i := range repositories {
		r := must.Get(forge.Add(githubtest.Repo{Org: "source", Name: fmt.Sprintf("repo-%d", i), Visibility: "private", DefaultBranch: "main"}, ""))
		must.Do(githubtest.Import(forge.Dir("source", r.Name), fmt.Sprintf("commit refs/heads/main\ncommitter Drill <drill@example.org> 1764000000 +0000\ndata 5\nfirst\nM 100644 inline a\ndata 1\n%d\ndone\n", i)))
	}
	s := &services{hubspot: hubspottest.New(hubspottest.Config{}), forge: forge}
	s.hubspot.AddPortal(portal)
	address, stop, err := process.Serve(ctx, forge)
	must.Do(err)
	base, end := s.hubspot.Start()
	s.base, s.stop = [2]string{base, "http://" + address + "/"}, []func(){stop, end}
	return s
}

func (s *services) settings() []string {
	return append(s.hubspot.Env(s.base[0]), "TAKT_PUBLIC_URL="+publicURL, "TAKT_GITHUB_URL="+s.base[1])
}

func (s *services) close() {
	for _, stop := range s.stop {
		stop()
	}
}

// install has the portal install the app.
func (s *services) install(ctx context.Context, c *process.Controller) {
	must.Do(s.hubspot.Install(ctx, c.URL+"/api/oauth/authorize", c.URL+"/api/oauth/callback", portal))
	must.Get(client.Call(ctx, c.Client, api.SetRate, api.SetRateIn{ThrottleConfig: api.ThrottleConfig{
		PortalID: portal, ActionID: action, MaxThroughput: 50, TimePeriod: 1, TimeUnit: "second",
	}}))
}

// webhooks sends webhooks until injecting ends. Each that was acknowledged has to be completed.
func webhooks(injecting context.Context, d *drill) {
	ctx := context.WithoutCancel(injecting)
	s := d.site.services
	c := &http.Client{Timeout: 10 * time.Second}
	defer c.CloseIdleConnections()
	for injecting.Err() == nil {
		hook := hubspottest.Webhook{PortalID: portal, ActionID: action, WorkflowID: 1, CallbackID: fmt.Sprintf("ap-%d-%d", portal, s.sent)}
		acknowledged := false
		for end := time.Now().Add(2 * d.recovery); !acknowledged && time.Now().Before(end); {
			status, _, err := s.hubspot.Fire(ctx, c, d.site.client.BaseURL()+hookPath, publicURL+hookPath, hook)
			if acknowledged = err == nil && status < 300; !acknowledged {
				if err == nil && status != http.StatusServiceUnavailable {
					d.ledger.violation("webhook %s: %d", hook.CallbackID, status)
				}
				process.Pause(ctx, 100*time.Millisecond)
			}
		}
		if !acknowledged {
			d.ledger.violation("webhook %s: not acknowledged", hook.CallbackID)
			return
		}
		s.sent++
		d.ledger.count(func(r *report) { r.Webhooks = s.sent })
		process.Pause(ctx, 100*time.Millisecond)
	}
	for end := time.Now().Add(d.recovery); s.hubspot.Distinct() < s.sent && time.Now().Before(end); {
		process.Pause(ctx, 100*time.Millisecond)
	}
	if done := s.hubspot.Distinct(); done != s.sent {
		d.ledger.violation("%d webhooks were acknowledged, and %d completed", s.sent, done)
	}
}

// deployments copies repositories until injecting ends. Each deployment has to copy all.
func deployments(injecting context.Context, d *drill) {
	ctx := context.WithoutCancel(injecting)
	s := d.site.services
	for n := 0; injecting.Err() == nil; n++ {
		target := fmt.Sprintf("target-%d", n)
		s.forge.AddOrg(target)
		var now api.Deployment
		err := d.retry(ctx, "deployment to "+target, func(ctx context.Context) (err error) {
			if now.ID == "" {
				now, err = client.Call(ctx, d.site.client, api.StartDeployment, api.DeploymentRequest{
					DeploymentRequest: store.DeploymentRequest{SourceOrg: "source", TargetOrg: target}, Token: forgeToken,
				})
			}
			return err
		})
		for end := time.Now().Add(2 * d.recovery); err == nil && !now.Ended() && time.Now().Before(end); {
			process.Pause(ctx, 100*time.Millisecond)
			err = d.retry(ctx, "state of the deployment to "+target, func(ctx context.Context) error {
				state, err := client.Call(ctx, d.site.client, api.ShowDeployment, api.ShowDeploymentIn{ID: api.DeploymentID(now.ID), Repos: "0"})
				if err == nil {
					now = state
				}
				return err
			})
		}
		if err != nil {
			return // noted
		}
		for i := range repositories {
			name := fmt.Sprintf("repo-%d", i)
			if same, _, err := s.forge.Compare("source", target, name); err != nil || !same {
				d.ledger.violation("%s/%s is no copy: %v", target, name, err)
			}
		}
		d.ledger.count(func(r *report) { r.Deployments++ })
		process.Pause(ctx, 500*time.Millisecond)
	}
}
