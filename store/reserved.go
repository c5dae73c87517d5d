package store

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The features that a worker can have, by which builds that need one go only to workers that
// have it. Each is a label of the worker with a name that nobody can give a label. A controller of
// an earlier release can't read a requirement with such a name, so it gives the build to nobody: its
// jobs don't say that a build has inputs.
const (
	FeatureEnv     = "env"     // it gives a build its parameters
	FeatureSecrets = "secrets" // it gives a build its secrets
	FeatureExit    = "exit"    // it reports how the command ended
	FeatureTimeout = "timeout" // it lets a build choose its time limit
)

const (
	// featurePrefix begins the names of labels that stand for features.
	featurePrefix = "takt:"
	// reservedPrefix begins the names of labels that workers send for their features, which the
	// controller ignores.
	reservedPrefix = "takt."
)

// Reserved reports whether nobody may give a worker a label of this name, or require it.
func Reserved(label string) bool {
	return strings.HasPrefix(label, reservedPrefix) || isFeature(label)
}

// isFeature reports whether a label stands for a feature.
func isFeature(label string) bool { return strings.HasPrefix(label, featurePrefix) }

// timeoutSteps are the time limits by which builds are told apart, in hours, so that they are of
// few classes.
func timeoutSteps() []int { return []int{1, 2, 4, 8, 12, 24} }

// MaxTimeout is the longest time limit of a build.
const MaxTimeout = 24 * time.Hour

// featureLabels returns the labels for the features of a worker with these features that allows builds
// time limits of up to limit. It ignores features that it does not know.
func featureLabels(features []string, limit time.Duration) Labels {
	l := Labels{}
	for _, f := range []string{FeatureEnv, FeatureSecrets, FeatureExit} {
		if slices.Contains(features, f) {
			l[featurePrefix+f] = "1"
		}
	}
	if slices.Contains(features, FeatureTimeout) {
		for _, h := range timeoutSteps() {
			if limit >= time.Duration(h)*time.Hour {
				l[featurePrefix+FeatureTimeout] = strconv.Itoa(h)
			}
		}
	}
	return l
}

// Public returns the labels of a worker without those that stand for features.
func (l Labels) Public() Labels {
	public := maps.Clone(l)
	maps.DeleteFunc(public, func(name, _ string) bool { return isFeature(name) })
	if len(public) == 0 {
		return nil
	}
	return public
}

// Public returns what a submitter required, without the conditions that inputs add.
func (r Require) Public() Require {
	return slices.DeleteFunc(slices.Clone(r), func(c condition) bool { return isFeature(c.name) })
}

// Features says for people which features r requires; "" if it has none.
func (r Require) Features() string {
	var features []string
	for i := range r {
		if isFeature(r[i].name) {
			features = append(features, r[i].feature())
		}
	}
	return strings.Join(features, ", ")
}

// conditions returns what the inputs of a build require of its worker.
func (i *Inputs) conditions() (r Require) {
	need := func(feature string) { r = append(r, condition{name: featurePrefix + feature}) }
	if len(i.Params) > 0 {
		need(FeatureEnv)
	}
	if len(i.Secrets) > 0 {
		need(FeatureSecrets)
	}
	if len(i.RetryOn) > 0 {
		need(FeatureExit)
	}
	if i.Timeout > 0 {
		steps := timeoutSteps()
		hours := steps[len(steps)-1]
		for _, h := range slices.Backward(steps) {
			if i.Timeout <= time.Duration(h)*time.Hour {
				hours = h
			}
		}
		r = append(r, condition{featurePrefix + FeatureTimeout, ">=", []string{strconv.Itoa(hours)}})
	}
	return r
}

// Need returns r with what inputs require of a worker in place of the features that r requires.
// Its error is InvalidArgument: both together are more than a requirement may be.
func (r Require) Need(inputs *Inputs) (Require, error) {
	added := Require(nil)
	if inputs != nil {
		added = inputs.conditions()
	}
	if len(added) == 0 && !slices.ContainsFunc(r, func(c condition) bool { return isFeature(c.name) }) {
		return r, nil
	}
	return parseRequire("require, with what the build's inputs need", append(r.Public(), added...).String(), true)
}

// Lacking says which features workers lack that could take builds of c but for those; "" if no
// worker could anyway.
func (f *Fleet) Lacking(c *Class) string {
	plain := Class{Platform: c.Platform, Require: c.Require.Public()}
	var able []*FleetGroup
	known, hours := false, 0 // some worker is of a release with features; the longest time limit
	for i := range f.groups {
		g := &f.groups[i]
		if g.State == WorkerLeft || !g.Takes(&plain) {
			continue
		}
		able = append(able, g)
		known = known || len(g.Labels.Public()) < len(g.Labels)
		n, _ := strconv.Atoi(g.Labels[featurePrefix+FeatureTimeout]) // 0 without one
		hours = max(hours, n)
	}
	var lacks []string
	for i := range c.Require {
		want := &c.Require[i]
		if !isFeature(want.name) || slices.ContainsFunc(able, func(g *FleetGroup) bool {
			is, has := g.Labels[want.name]
			return want.match(is, has)
		}) {
			continue
		}
		lack := want.feature()
		switch {
		case want.op != ">=":
		case hours > 0:
			lack += ": the longest that one allows is " + strconv.Itoa(hours) + " h (takt worker --max-timeout)"
		case known:
			lack += ": the longest that one allows is less than 1 h (takt worker --max-timeout)"
		}
		lacks = append(lacks, lack)
	}
	switch of := plain.String(); {
	case len(able) == 0 || len(plain.Require) == len(c.Require):
		return ""
	case len(lacks) == 0:
		return "No worker for " + of + " has all that the build needs."
	case !known:
		return "It waits for a worker of takt 0.2 or newer: no worker for " + of + " can give a build " + strings.Join(lacks, ", ") + "."
	default:
		return "No worker for " + of + " can give a build " + strings.Join(lacks, ", ") + "."
	}
}

// feature says for people what a condition on a feature means.
func (c *condition) feature() string {
	switch strings.TrimPrefix(c.name, featurePrefix) {
	case FeatureEnv:
		return "parameters"
	case FeatureSecrets:
		return "secrets"
	case FeatureExit:
		return "retries by exit code"
	case FeatureTimeout:
		if len(c.values) == 1 {
			return "a time limit of " + c.values[0] + " h"
		}
	}
	return c.String()
}
