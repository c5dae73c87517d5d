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

// Store is the deployments' part of the database. All methods fail at once with
// store.Unavailable during an outage. Writes with a claim fail with store.StaleAttempt if
// the claim's run is not the current one.
type Store interface {
	// Requests of callers.
	Create(ctx context.Context, d store.Deployment) (store.Deployment, error)
	Find(ctx context.Context, id string) (store.Deployment, error)
	Cancel(ctx context.Context, id string, may func(store.Deployment) error) error
	Pause(ctx context.Context, id string, may func(store.Deployment) error) error
	Resume(ctx context.Context, id string, may func(store.Deployment) error) error
	Retry(ctx context.Context, id, repo string, choose func(store.Deployment) (credential, credentialID []byte, err error)) (revived int, err error)

	// Who works on which deployment.
	Claim(ctx context.Context, owner string, lease time.Duration, has []string, limit int) ([]store.DeploymentClaim, error)
	Renew(ctx context.Context, owner string, lease time.Duration, ids []string) ([]store.DeploymentClaim, error)

	// The record of a deployment.
	Plan(ctx context.Context, claim store.DeploymentClaim, repos []store.DeploymentRepo, filtered int) error
	Open(ctx context.Context, id string, dryRun bool) ([]store.DeploymentRepo, error)
	Made(ctx context.Context, credentialID []byte, within time.Duration) ([]time.Duration, error)
	Finish(ctx context.Context, claim store.DeploymentClaim) (left int, err error)
	Abandon(ctx context.Context, claim store.DeploymentClaim, message string) error

	// The record of one repository.
	Begin(ctx context.Context, claim store.DeploymentClaim, name string) (store.DeploymentRepo, error)
	Step(ctx context.Context, claim store.DeploymentClaim, name string, run int64, change store.RepoChange) error
	Lose(ctx context.Context, claim store.DeploymentClaim, name, message string) error
}

// Forge is the server that has the repositories.
type Forge interface {
	Login(token string) Account
}

// Account is the access to a Forge with one credential. *forge.Account implements it.
type Account interface {
	Repos(ctx context.Context, org string) ([]forge.Repo, error)
	Find(ctx context.Context, w forge.CreateRequest) (forge.Target, bool, error)
	Create(ctx context.Context, w forge.CreateRequest) (forge.Target, error)
	Copy(ctx context.Context, from, to string) (forge.Copied, error)
	Refs(ctx context.Context, cloneURL string) (forge.Refs, error)
	Configure(ctx context.Context, org, name string, s forge.Settings) error
	Seed(ages []time.Duration)
}

// Config are the subsystem's settings. Owner and Keys are required.
type Config struct {
	// Owner identifies this controller. It stays the same after a restart.
	Owner string
	// Keys seal credentials.
	Keys *seal.Ring
	// Token is takt's own forge credential, "" if there is none. It is used only for the
	// pairs in Allow.
	Token string
	Allow []Pair
	// Creates are the forge's limits, for estimates.
	Creates []forge.Limit
	// Concurrency is how many repositories a deployment copies at once, unless the
	// deployment sets its own number. Defaults to 8.
	Concurrency int
	// MaxActive is how many deployments this controller works on at once. Further ones
	// wait. Defaults to 16.
	MaxActive int
	// Look is how often the resumer checks for deployments that nobody works on, and for
	// deployments that were cancelled elsewhere. Defaults to 1 s.
	Look time.Duration
	// Patience is how much longer than announced a RepoWorker may be silent. Then it counts
	// as hanging and is killed. Defaults to 2 minutes.
	Patience time.Duration
	// Retry is the wait before a write is retried that failed in an outage of the
	// database. Defaults to 500 ms.
	Retry time.Duration
}

// Pair is an organisation, and a target that it may be copied into.
type Pair struct{ Source, Target string }

// Valid reports whether both are possible names of organisations.
func (p Pair) Valid() bool {
	return orgPattern.MatchString(p.Source) && orgPattern.MatchString(p.Target)
}

// allows reports whether takt's own credential may be used for r. GitHub ignores the case
// of names.
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
	// lease is how long a controller that has died keeps its deployments.
	lease = 15 * time.Second
)

// Deployments is the handle of the subsystem. It stays valid over restarts and is safe
// for concurrent use.
type Deployments struct {
	cfg   Config
	db    Store
	forge Forge
	bus   pubsub.Bus
	sys   *otp.System

	deploymentSup, repoSup, resumer otp.Ref

	gauges gauges
}

// New returns the handle for the actors that DeploymentSup, RepoSup and Resumer describe.
// It starts nothing.
func New(sys *otp.System, db Store, f Forge, bus pubsub.Bus, cfg Config) *Deployments {
	cfg = cfg.withDefaults()
	return &Deployments{
		cfg: cfg, db: db, forge: f, bus: bus, sys: sys,
		deploymentSup: sys.Ref(root + "/deployment_sup"), repoSup: sys.Ref(root + "/repo_sup"), resumer: sys.Ref(root + "/resumer"),
	}
}

// Start begins a deployment. Once Start has returned, the deployment is durable and continues
// even after a crash. token is the forge credential, "" for takt's own, which only an operator
// may use. Errors: InvalidArgument, Unauthorized, Forbidden, Unavailable.
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

// idLength is the number of characters of an id. An id has only lower-case letters and digits,
// because it is part of process names and is shown in terminals.
const idLength = 16

// maySpend returns an error if takt's own credential may not be used for r.
func (d *Deployments) maySpend(r store.DeploymentRequest, operator bool) error {
	switch {
	case d.cfg.Token == "":
		return invalid("token required: takt has no forge credential of its own")
	case !operator:
		return store.NewError(store.Unauthorized, "Missing token or X-Admin-Key header: takt's own forge credential is the operators'")
	case !d.cfg.allows(r):
		return store.NewError(store.Forbidden, fmt.Sprintf("takt's own forge credential is not for copying %s to %s: deploy-allow does not list it", r.SourceOrg, r.TargetOrg))
	}
	return nil
}

// maySteer returns a check that refuses a deployment with takt's own credential unless the
// caller is an operator. Others must neither continue to use that credential nor end what an
// operator began.
func maySteer(operator bool) func(store.Deployment) error {
	return func(d store.Deployment) error {
		if d.SpendsOwn() && !operator {
			return store.NewError(store.Unauthorized, "Missing X-Admin-Key header: this deployment spends takt's own forge credential, so only operators may change it")
		}
		return nil
	}
}

// credential seals token, or chooses takt's own credential if token is "".
func (d *Deployments) credential(id, token string) (sealed, credential []byte, err error) {
	switch {
	case len(token) > 1000 || strings.ContainsAny(token, "\r\n\x00 "):
		return nil, nil, invalid("token is not a forge credential")
	case token == "":
		return nil, credentialID(d.cfg.Token), nil
	}
	return d.cfg.Keys.Seal(seal.ForgeCredential, id, []byte(token)), credentialID(token), nil
}

// credentialID identifies a token without revealing it. Tokens of forges are random and too
// long to be guessed.
func credentialID(token string) []byte {
	sum := sha256.Sum256([]byte("takt forge credential\x00" + token))
	return sum[:]
}

// Cancel ends a deployment. Its git processes are killed, and unfinished repositories are
// skipped. Errors: NotFound, Conflict, Unauthorized.
func (d *Deployments) Cancel(ctx context.Context, id string, operator bool) error {
	return d.look(d.db.Cancel(ctx, id, maySteer(operator)))
}

// Pause stops the work on a deployment until Resume. Errors: NotFound, Conflict,
// Unauthorized.
func (d *Deployments) Pause(ctx context.Context, id string, operator bool) error {
	return d.look(d.db.Pause(ctx, id, maySteer(operator)))
}

// Resume continues a paused deployment. Errors: NotFound, Conflict, Unauthorized.
func (d *Deployments) Resume(ctx context.Context, id string, operator bool) error {
	return d.look(d.db.Resume(ctx, id, maySteer(operator)))
}

// Retry retries one repository, or with repo "" all that failed or that a cancel skipped.
// A deployment that has ended needs its credential again. Errors: NotFound, Conflict,
// InvalidArgument, Unauthorized, Forbidden.
func (d *Deployments) Retry(ctx context.Context, id, repo, token string, operator bool) (revived int, err error) {
	revived, err = d.db.Retry(ctx, id, repo, func(found store.Deployment) (sealed, credential []byte, err error) {
		ended := found.State.Final()
		if found.SpendsOwn() || ended && token == "" {
			err = d.maySpend(found.Request, operator)
		}
		if err != nil || !ended {
			return nil, nil, err
		}
		return d.credential(id, token)
	})
	if err == nil {
		otp.Cast(d.sys.Ref(d.deploymentSup.Name()+"/"+id+"/worker"), rescan{})
	}
	return revived, d.look(err)
}

// look wakes the resumer if err is nil.
func (d *Deployments) look(err error) error {
	if err == nil {
		otp.Cast(d.resumer, look{})
	}
	return err
}

// Estimate returns the cost of a dry run's plan.
func (d *Deployments) Estimate(r store.DeploymentRequest, p store.DeploymentProgress) store.DeploymentEstimate {
	return estimate(p.Steps[store.RepoPlanned], r.Concurrency, d.cfg.Creates, assumedPerRepo)
}

// assumedPerRepo is the time to copy a repository of common size over the internet.
const assumedPerRepo = 5 * time.Second

// GitHub adapts package forge's GitHub to the interface Forge.
func GitHub(g *forge.GitHub) Forge { return github{g} }

type github struct{ g *forge.GitHub }

// Login implements Forge.
func (f github) Login(token string) Account { return f.g.Login(token) }
