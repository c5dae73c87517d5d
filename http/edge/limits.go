package edge

import (
	"time"

	"takt/store"
	"takt/store/limiter"
)

// The rules of the limits that a [Server] has, as they stand in refusals and metrics.
const (
	RulePublic        = "public requests"
	RulePublicBodies  = "bodies of public requests"
	RuleBodies        = "bodies"
	RulePages         = "pages"
	RuleAdmin         = "admin"
	RuleStreams       = "streams"
	RuleTokenStreams  = "streams with a build token"
	RuleTail          = "log readings"
	RuleDownloads     = "downloads of a build"
	RuleCertificates  = "certificates"
	RuleExplanations  = "explanations"
	RuleInstallations = "installations"
	RuleProfiles      = "profiles"
	RulePageReadings  = "page readings"
	RuleLogins        = "logins"
	RuleLivePages     = "live pages"
	RuleWrongKeys     = "wrong keys"
	RuleRefusedBodies = "refused bodies"
)

// limits are all limits on what is under way at once, except for the pools, in which requests
// run. Those that are fair are shared by credential, see [Server.ShareOf]. The others are for
// clients that need no credential, and are shared by address, or by nobody.
func limits(cfg Config) []limiter.Limit {
	return []limiter.Limit{
		// Before admission. A public request of an address that has shown no credential holds the
		// first of these for as long as it takes.
		{Rule: RulePublic, Most: 512, Each: 128},
		{Rule: RulePublicBodies, Most: 1024, Each: 256},
		{
			Rule: RuleBodies, Most: 256, Fair: true, Wait: 20 * time.Second, Queue: 1024, // each has up to MaxJSON bytes
			Refusal: store.Error{Message: "Too many transfers at once, try again later", RetryAfter: 5 * time.Second},
		},
		{Rule: RuleRefusedBodies, Most: 8},
		{Rule: RuleWrongKeys, Most: 256, Each: 16}, // whose replies are delayed

		// Without admission.
		{Rule: RulePages, Most: cfg.MaxBypass, Each: max(1, cfg.MaxBypass/4)},
		{Rule: RuleAdmin, Most: cfg.MaxBypass, Fair: true},
		{Rule: RuleStreams, Most: cfg.MaxStreams, Fair: true, Refusal: *ErrTooManyStreams()},
		{Rule: RuleTokenStreams, Most: max(1, cfg.MaxStreams/4), Fair: true, Refusal: *ErrTooManyStreams()},
		{Rule: RuleTail, Most: 4, Wait: limiter.Forever},
		{Rule: RulePageReadings, Most: 16, Fair: true, Wait: 2 * time.Second, Refusal: store.Error{Message: "Too many pages at once, try again"}},
		{Rule: RuleLogins, Most: 512, Each: 64},
		{Rule: RuleLivePages, Most: 4},                  // they share the database with everybody
		{Rule: RuleExplanations, Most: 256, Fair: true}, // they wait for a reading of the fleet
		{Rule: RuleProfiles, Most: 1, Refusal: store.Error{Code: store.Conflict, Message: "A profile is being taken already"}},
		{Rule: RuleInstallations, Most: 16, Each: 4}, // they wait for HubSpot

		// Within a place.
		{Rule: RuleDownloads, Most: 4096, Each: 8}, // of each build, by those who show only its token
		// The largest allowed archive takes some 80 MiB of memory. Who waits does so for longer than
		// the slowest clients of another credential may hold all units.
		{
			Rule: RuleCertificates, Most: 4, Wait: 2 * UnpackPatience,
			Refusal: store.Error{Message: "Too many certificates are being unpacked, try again later"},
		},
	}
}

// UnpackPatience is how long a client may take to read unpacked certificates.
const UnpackPatience = 20 * time.Second

// LimitUse is how a limit is used.
type LimitUse struct {
	Rule string
	limiter.Counts
}

// LimitUses returns how all limits are used, in the order of the table.
func (s *Server) LimitUses() (all []LimitUse) {
	for _, l := range limits(s.Config) {
		all = append(all, LimitUse{l.Rule, s.limits[l.Rule].Counts()})
	}
	return all
}

// Limit returns the limiter of a rule.
func (s *Server) Limit(rule string) *limiter.Limiter { return s.limits[rule] }
