package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Registration is a worker's request to join.
type Registration struct {
	// ID is the id that the worker sent, or a new one.
	ID           string
	Name         string
	Capabilities json.RawMessage
	Platforms    []Platform
	// Labels include the reserved ones, which follow from the worker's features.
	Labels Labels
	// Features are those of the worker's that are known here.
	Features []string
	Slots    int
	// Reports is true if the worker lists its running builds in Running. It loses every
	// other build that it holds; for one that it had begun, the attempt counts.
	Reports bool
	Running []string
	// Instance is the id of the worker's process, "" if it has none. While it speaks, other
	// processes can't register under the same ID.
	Instance string
	// Number grows with each registration that Instance sends, so that one that is executed
	// late changes nothing; 0 if they are not numbered.
	Number int64
	// Key is the name of the key that the worker becomes the only one of; "" for none.
	Key string
}

// Limits of a registration's fields.
const (
	maxWorkerName   = 200      // characters
	maxCapabilities = 16 << 10 // bytes
	maxSlots        = 256
	maxPlatforms    = 16
	maxWorkerLabels = 1 << 10 // bytes, because each assignment reads them
	maxRunning      = 1000
	maxFeatures     = 64
	maxNumber       = 1<<53 - 1 // JSON's numbers are exact up to it
)

// ParseRegistration parses and checks a worker's registration, in JSON. ID is "" if it
// has none. running is absent unless the worker lists its builds, instance unless its
// process names itself, number unless the process numbers its registrations. Its error is
// RegistrationFailed, with details.
func ParseRegistration(id, name, capabilities, running, instance, number json.RawMessage) (r Registration, err error) {
	if Absent(name) {
		return r, notRegistered("name is required")
	}
	if json.Unmarshal(name, &r.Name) != nil || strings.TrimSpace(r.Name) == "" {
		return r, notRegistered("name must be a text that is not empty")
	}
	if r.Name = Line(Text(r.Name)); utf8.RuneCountInString(r.Name) > maxWorkerName {
		return r, notRegistered(fmt.Sprintf("name must have at most %d characters", maxWorkerName))
	}
	if !Absent(id) && (json.Unmarshal(id, &r.ID) != nil || r.ID != "" && !ValidID(r.ID)) {
		return r, notRegistered(fmt.Sprintf("id must be 1 to %d characters of A-Z a-z 0-9 _ -", MaxIDLength))
	}
	if !Absent(instance) && (json.Unmarshal(instance, &r.Instance) != nil || !ValidID(r.Instance)) {
		return r, notRegistered(fmt.Sprintf("instance must be 1 to %d characters of A-Z a-z 0-9 _ -", MaxIDLength))
	}
	if !Absent(number) && (json.Unmarshal(number, &r.Number) != nil || r.Number < 1 || r.Number > maxNumber || r.Instance == "") {
		return r, notRegistered("registration must be a whole number from 1 to 9007199254740991, and needs an instance")
	}
	if Absent(capabilities) {
		return r, notRegistered("capabilities are required")
	}
	if r.Reports = !Absent(running); r.Reports {
		invalid := func(id string) bool { return !ValidID(id) }
		if json.Unmarshal(running, &r.Running) != nil || len(r.Running) > maxRunning || slices.ContainsFunc(r.Running, invalid) {
			return r, notRegistered(fmt.Sprintf("active_builds must be a list of at most %d build ids", maxRunning))
		}
	}
	return r, r.read(capabilities)
}

func notRegistered(details string) error {
	return &Error{Code: RegistrationFailed, Message: "Registration failed", Details: details}
}

// read reads the capabilities that matter here. All capabilities are stored as they
// were sent.
func (r *Registration) read(capabilities json.RawMessage) error {
	var members map[string]json.RawMessage
	if json.Unmarshal(capabilities, &members) != nil {
		return notRegistered("capabilities must be an object")
	}
	if len(capabilities) > maxCapabilities {
		return notRegistered(fmt.Sprintf("capabilities must have at most %d bytes", maxCapabilities))
	}
	// PostgreSQL accepts neither of these in JSON.
	if !utf8.Valid(capabilities) || bytes.Contains(capabilities, []byte(`\u0000`)) {
		return notRegistered("capabilities must be UTF-8 text without NUL")
	}
	r.Capabilities, r.Slots = capabilities, 1
	if v := members["maxConcurrentBuilds"]; !Absent(v) {
		var n float64
		if json.Unmarshal(v, &n) != nil || n < 1 || n != float64(int64(n)) {
			return notRegistered("maxConcurrentBuilds must be a whole number of at least 1")
		}
		r.Slots = int(min(n, maxSlots))
	}
	if v := members["labels"]; !Absent(v) {
		labels, err := parseLabels(string(v), true)
		if err != nil || len(v) > maxWorkerLabels {
			return notRegistered(fmt.Sprintf("labels must be an object of at most %d texts and %d bytes, as a build's labels are", MaxLabels, maxWorkerLabels))
		}
		r.Labels = labels
	}
	if err := r.readFeatures(members["features"], members["max_timeout"]); err != nil {
		return err
	}
	if v := members["platforms"]; !Absent(v) {
		return r.readPlatforms(v)
	}
	return nil
}

// readFeatures adds the reserved labels. It ignores features that it does not know, which a later
// release may have.
func (r *Registration) readFeatures(features, limit json.RawMessage) error {
	var names []string
	var seconds float64
	if !Absent(features) && (json.Unmarshal(features, &names) != nil || len(names) > maxFeatures) {
		return notRegistered(fmt.Sprintf("features must be a list of at most %d texts", maxFeatures))
	}
	if !Absent(limit) && (json.Unmarshal(limit, &seconds) != nil || seconds < 0) {
		return notRegistered("max_timeout must be a number of seconds")
	}
	for _, f := range []string{FeatureEnv, FeatureSecrets, FeatureExit, FeatureTimeout} {
		if slices.Contains(names, f) {
			r.Features = append(r.Features, f)
		}
	}
	for name, value := range featureLabels(names, time.Duration(min(seconds, MaxTimeout.Seconds()))*time.Second) {
		if r.Labels == nil {
			r.Labels = Labels{}
		}
		r.Labels[name] = value
	}
	return nil
}

// readPlatforms reads a list of platforms, or one. It keeps unknown ones, because a
// worker with only unknown platforms must not count as one that names none.
func (r *Registration) readPlatforms(raw json.RawMessage) error {
	var names []string
	var one string
	if json.Unmarshal(raw, &one) == nil {
		names = []string{one}
	} else if json.Unmarshal(raw, &names) != nil || len(names) > maxPlatforms {
		return notRegistered(fmt.Sprintf("platforms must be a list of at most %d texts", maxPlatforms))
	}
	for _, n := range names {
		n = strings.ToLower(strings.TrimSpace(n))
		if !ValidID(n) {
			n = "unknown"
		}
		r.Platforms = append(r.Platforms, Platform(n))
	}
	return nil
}
