package deployment

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"takt/actors/deployment/forge"
	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
	"takt/store/seal"
)

// Store is the database's part. All of it fails at once with store.Unavailable
// while the database is away. What is written by the run that a claim names fails
// with store.StaleAttempt when that run is not the current one.
type Store interface {
	// What callers want.
	Create(ctx context.Context, d store.Deployment) (store.Deployment, error)
	Find(ctx context.Context, id string) (store.Deployment, error)
	Cancel(ctx context.Context, id string) error
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
	Retry(ctx context.Context, id string, r store.DeploymentRetry) (revived int, err error)

	// Who works on what.
	Claim(ctx context.Context, owner string, lease time.Duration, has []string, limit int) ([]store.DeploymentClaim, error)
	Renew(ctx context.Context, owner string, lease time.Duration, ids []string) ([]store.DeploymentClaim, error)

	// What is written down of a deployment.
	Plan(ctx context.Context, claim store.DeploymentClaim, repos []store.DeploymentRepo, filtered int) error
	Open(ctx context.Context, id string, dryRun bool) ([]store.DeploymentRepo, error)
	Made(ctx context.Context, credentialID []byte, within time.Duration) ([]time.Duration, error)
	Finish(ctx context.Context, claim store.DeploymentClaim) (left int, err error)
	Abandon(ctx context.Context, claim store.DeploymentClaim, message string) error

	// What is written down of one repository.
	Begin(ctx context.Context, claim store.DeploymentClaim, name string) (store.DeploymentRepo, error)
	Step(ctx context.Context, claim store.DeploymentClaim, name string, run int64, change store.RepoChange) error
	Lose(ctx context.Context, claim store.DeploymentClaim, name, message string) error
}

// Forge is where repositories are.
type Forge interface {
	Login(token string) Account
}

// Account is what can be done there with one credential. *forge.Account does it.
type Account interface {
	Repos(ctx context.Context, org string) ([]forge.Repo, error)
	Find(ctx context.Context, w forge.Wish) (forge.Target, bool, error)
	Create(ctx context.Context, w forge.Wish) (forge.Target, error)
	Copy(ctx context.Context, from, to string) (forge.Copied, error)
	Refs(ctx context.Context, cloneURL string) (forge.Refs, error)
	Settle(ctx context.Context, org, name string, s forge.Settings) error
	Seed(ages []time.Duration)
}

// Config are the subsystem's settings. Owner and Keys are required.
type Config struct {
	// Owner tells this controller from others, also after a restart.
	Owner string
	// Keys seal credentials.
	Keys *seal.Ring
	// Token is takt's own forge credential; "" if there is none. It is spent on
	// Allow only.
	Token string
	Allow []Pair
	// Creates are the forge's limits, for estimates.
	Creates []forge.Limit
	// Concurrency is how many repositories a deployment copies at once, unless it
	// says so itself. Defaults to 8.
	Concurrency int
	// MaxActive is how many deployments this controller works on at once; others
	// wait. Defaults to 16.
	MaxActive int
	// Look is how often the resumer looks for deployments that nobody works on, and
	// for those that were cancelled elsewhere. Defaults to 1 s.
	Look time.Duration
	// Patience is how long a RepoWorker may be silent beyond what it has
	// announced, before it is given up as hanging. Defaults to 2 minutes.
	Patience time.Duration
	// Retry is the wait before a write is tried again that the database was away
	// for. Defaults to 500 ms.
	Retry time.Duration
}

// Pair is an organisation and one that it may be copied into.
type Pair struct{ Source, Target string }

// Valid reports whether both could be names of organisations.
func (p Pair) Valid() bool {
	return orgPattern.MatchString(p.Source) && orgPattern.MatchString(p.Target)
}

// allows reports whether takt's own credential may be spent on r. GitHub's names
// have no case.
func (c Config) allows(r store.DeploymentRequest) bool {
	return slices.ContainsFunc(c.Allow, func(p Pair) bool {
		return strings.EqualFold(p.Source, r.SourceOrg) && strings.EqualFold(p.Target, r.TargetOrg)
	})
}

func (c Config) withDefaults() Config {
	c.Concurrency = cmp.Or(c.Concurrency, 8)
	c.MaxActive = cmp.Or(c.MaxActive, 16)
	c.Look = cmp.Or(c.Look, time.Second)
	c.Patience = cmp.Or(c.Patience, 2*time.Minute)
	c.Retry = cmp.Or(c.Retry, 500*time.Millisecond)
	return c
}

const (
	// root is the path of the subsystem's supervisor.
	root = "takt/deployments"
	// lease is how long a controller that is gone keeps its deployments.
	lease = 15 * time.Second
)

// Deployments is the handle of the subsystem. It stays valid over restarts and
// may be used from any goroutine.
type Deployments struct {
	cfg   Config
	db    Store
	forge Forge
	bus   pubsub.Bus
	sys   *otp.System

	deploymentSup, repoSup, resumer otp.Ref

	gauges gauges
}

// New returns the handle of what DeploymentSup, RepoSup and Resumer describe. It starts nothing.
func New(sys *otp.System, db Store, f Forge, bus pubsub.Bus, cfg Config) *Deployments {
	cfg = cfg.withDefaults()
	return &Deployments{
		cfg: cfg, db: db, forge: f, bus: bus, sys: sys,
		deploymentSup: sys.Ref(root + "/deployment_sup"), repoSup: sys.Ref(root + "/repo_sup"), resumer: sys.Ref(root + "/resumer"),
	}
}

// Start begins a deployment; it is certain to go on once Start has returned. token
// is the forge credential, "" for takt's own, which only an operator may spend.
// Errors: InvalidArgument, Unauthorized, Forbidden.
func (d *Deployments) Start(ctx context.Context, r store.DeploymentRequest, token string, operator bool) (store.Deployment, error) {
	r, err := normalize(r, d.cfg.Concurrency)
	if err != nil {
		return store.Deployment{}, err
	}
	if token == "" {
		if err := d.maySpend(r, operator); err != nil {
			return store.Deployment{}, err
		}
	}
	id := strings.ToLower(rand.Text())[:idLength]
	deployment := store.Deployment{ID: id, Request: r}
	if deployment.Credential, deployment.CredentialID, err = d.credential(id, token); err != nil {
		return store.Deployment{}, err
	}
	deployment, err = d.db.Create(ctx, deployment)
	return deployment, d.look(err)
}

// idLength is how many characters an id has: small letters and digits, because it
// ends up in names of processes and in the terminal.
const idLength = 16

// maySpend says why takt's own credential is not spent on r.
func (d *Deployments) maySpend(r store.DeploymentRequest, operator bool) error {
	switch {
	case d.cfg.Token == "":
		return invalid("token required: takt has no forge credential of its own")
	case !operator:
		return store.NewError(store.Unauthorized, "token or X-Admin-Key header required: takt's own forge credential is the operators'")
	case !d.cfg.allows(r):
		return store.NewError(store.Forbidden, fmt.Sprintf("takt's own forge credential is not for copying %s to %s: deploy-allow does not list it", r.SourceOrg, r.TargetOrg))
	}
	return nil
}

// credential seals a token, or decides for takt's own.
func (d *Deployments) credential(id, token string) (sealed, credential []byte, err error) {
	switch {
	case len(token) > 1000 || strings.ContainsAny(token, "\r\n\x00 "):
		return nil, nil, invalid("token is not a forge credential")
	case token == "":
		return nil, credentialID(d.cfg.Token), nil
	}
	return d.cfg.Keys.Seal(seal.ForgeCredential, id, []byte(token)), credentialID(token), nil
}

// credentialID tells tokens apart without giving them away: forges make them at
// random, long enough that nobody finds one by trying.
func credentialID(token string) []byte {
	sum := sha256.Sum256([]byte("takt forge credential\x00" + token))
	return sum[:]
}

// Cancel ends a deployment. Its git processes are killed at once; what was not at
// its end is skipped. Errors: NotFound, Conflict.
func (d *Deployments) Cancel(ctx context.Context, id string) error {
	return d.look(d.db.Cancel(ctx, id))
}

// Pause stops the work on a deployment until Resume. Errors: NotFound, Conflict.
func (d *Deployments) Pause(ctx context.Context, id string) error {
	return d.look(d.db.Pause(ctx, id))
}

// Resume lets a paused deployment go on. Errors: NotFound, Conflict.
func (d *Deployments) Resume(ctx context.Context, id string) error {
	return d.look(d.db.Resume(ctx, id))
}

// Retry tries repositories again: one, or with repo "" all that failed or were
// skipped by a cancel. A deployment that has ended needs a credential anew.
// Errors: NotFound, Conflict, InvalidArgument, Unauthorized, Forbidden.
func (d *Deployments) Retry(ctx context.Context, id, repo, token string, operator bool) (revived int, err error) {
	found, err := d.db.Find(ctx, id)
	if err != nil {
		return 0, err
	}
	if found.Credential == nil && (token == "" || !found.State.Final()) {
		if err := d.maySpend(found.Request, operator); err != nil {
			return 0, err
		}
	}
	r := store.DeploymentRetry{Repo: repo}
	if found.State.Final() {
		if r.Credential, r.CredentialID, err = d.credential(id, token); err != nil {
			return 0, err
		}
	}
	revived, err = d.db.Retry(ctx, id, r)
	if err == nil {
		otp.Cast(d.sys.Ref(d.deploymentSup.Name()+"/"+id+"/worker"), rescan{})
	}
	return revived, d.look(err)
}

// look makes the resumer look, if something was changed.
func (d *Deployments) look(err error) error {
	if err == nil {
		otp.Cast(d.resumer, look{})
	}
	return err
}

// Estimate says what a dry run's plan would cost.
func (d *Deployments) Estimate(r store.DeploymentRequest, p store.DeploymentProgress) store.DeploymentEstimate {
	return estimate(p.Steps[store.RepoPlanned], r.Concurrency, d.cfg.Creates, assumedPerRepo)
}

// assumedPerRepo is what a repository of common size takes over the internet.
const assumedPerRepo = 5 * time.Second

// GitHub makes a forge of package forge the Forge of this one.
func GitHub(g *forge.GitHub) Forge { return github{g} }

type github struct{ g *forge.GitHub }

// Login implements Forge.
func (f github) Login(token string) Account { return f.g.Login(token) }
