package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
)

// notices is a receiver of notices.
type notices struct {
	stop func()

	mu       sync.Mutex
	secret   string
	verified map[string]bool // ids of builds
	refused  []string
}

// subscribe starts a receiver, and subscribes it to completed builds.
func (s *stage) subscribe(ctx context.Context) error {
	n := &notices{verified: map[string]bool{}}
	address, stop, err := process.Serve(ctx, n)
	if err != nil {
		return err
	}
	s.notices, n.stop = n, stop
	made, err := client.Call(ctx, s.controller.Client, api.CreateSubscription, api.CreateSubscriptionIn{
		URL: "http://" + address + "/", SubscriptionFilter: api.SubscriptionFilter{Events: []string{"build.completed"}},
	})
	if err != nil {
		return fmt.Errorf("subscribing: %w", err)
	}
	n.mu.Lock()
	n.secret = made.Secret
	n.mu.Unlock()
	s.say("notices      of completed builds go to http://%s/", address)
	return nil
}

// ServeHTTP takes a notice, and verifies its signature as the Standard Webhooks specification
// says.
func (n *notices) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var content struct {
		Type string
		Data struct{ ID string }
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(n.secret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	if err := json.Unmarshal(body, &content); err != nil || !hmac.Equal([]byte(want), []byte(r.Header.Get("webhook-signature"))) {
		n.refused = append(n.refused, string(body))
		http.Error(w, "the signature is wrong", http.StatusUnauthorized)
		return
	}
	n.verified[content.Data.ID] = true
	w.WriteHeader(http.StatusNoContent)
}

// checkNotices waits for a notice of each build.
func (s *stage) checkNotices(ctx context.Context) error {
	var refused []string
	arrived := func() string {
		s.notices.mu.Lock()
		defer s.notices.mu.Unlock()
		return fmt.Sprintf("%d notices", len(s.notices.verified))
	}
	if err := s.controller.Await(ctx, "a notice of each build", arrived, func(context.Context) (bool, error) {
		s.notices.mu.Lock()
		defer s.notices.mu.Unlock()
		refused = s.notices.refused
		return len(s.notices.verified) == builds || len(refused) > 0, nil
	}); err != nil {
		return err
	}
	if len(refused) > 0 {
		return fmt.Errorf("the signature of a notice is wrong: %s", refused[0])
	}
	s.say("notices      %d of %d arrived, each signature verified", builds, builds)
	return nil
}
