package main

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"time"

	"takt/actors/throttle"
	"takt/actors/throttle/hubspot"
)

// HubSpotConfig is what the throttle needs to know of HubSpot.
type HubSpotConfig struct {
	// App is the app that portals install. RedirectURL defaults to the callback
	// below PublicURL.
	App hubspot.App
	// Client says where HubSpot is.
	Client hubspot.Config
	// Reply is "204" or "block": what a waiting action is answered with.
	Reply string
	// Expiration is how long HubSpot waits for an action.
	Expiration time.Duration
	// OldKeys are further encryption keys, parted by commas: what they have sealed
	// can be opened.
	OldKeys string
}

func defaultHubSpot() HubSpotConfig {
	return HubSpotConfig{
		App:   hubspot.App{Scopes: "automation oauth"},
		Reply: "204", Expiration: 7 * 24 * time.Hour, Client: hubspot.Config{Timeout: 30 * time.Second},
	}
}

// validateHubSpot names what is wrong with it.
func (c *Config) validateHubSpot() (faults []error) {
	h := c.HubSpot
	bad := func(name, text string) { faults = append(faults, fmt.Errorf("%s: %s", name, text)) }
	for name, v := range map[string]string{
		"hubspot-redirect-url": h.App.RedirectURL, "hubspot-api-url": h.Client.API,
	} {
		if u, err := url.Parse(v); v != "" && (err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https")) {
			bad(name, "must be an http or https URL")
		}
	}
	if h.Reply != "204" && h.Reply != "block" {
		bad("hubspot-reply", "must be 204 or block")
	}
	if h.Expiration < time.Minute || h.Expiration > 366*24*time.Hour {
		bad("hubspot-expiration", "must be 1m to 366 days")
	}
	if h.Client.Timeout < time.Second || h.Client.Timeout > 5*time.Minute {
		bad("hubspot-timeout", "must be 1s to 5m")
	}
	if _, err := oldKeys(h.OldKeys); err != nil {
		bad("old-encryption-keys", err.Error())
	}
	return faults
}

// oldKeys reads a list of keys.
func oldKeys(list string) (keys [][]byte, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) != 32 {
			return nil, fmt.Errorf("each must be 32 bytes in base64")
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// encryptionKeys returns the current encryption key and, after it, the old ones.
func (c *Config) encryptionKeys() ([][]byte, error) {
	current, err := base64.StdEncoding.DecodeString(c.EncryptionKey)
	if err != nil {
		return nil, fmt.Errorf("encryption key: %w", err)
	}
	old, err := oldKeys(c.HubSpot.OldKeys)
	if err != nil {
		return nil, fmt.Errorf("old encryption keys: %w", err)
	}
	return append([][]byte{current}, old...), nil
}

// throttleDeps is what the throttle works with, but its store.
func (c *Config) throttleDeps() (throttle.Deps, error) {
	all, err := c.encryptionKeys()
	if err != nil {
		return throttle.Deps{}, err
	}
	keys, err := throttle.NewKeys(all...)
	if err != nil {
		return throttle.Deps{}, err
	}
	app := c.HubSpot.App
	if app.RedirectURL == "" && c.PublicURL != "" {
		app.RedirectURL = strings.TrimSuffix(c.PublicURL, "/") + "/api/oauth/callback"
	}
	return throttle.Deps{HubSpot: hubspot.NewClient(c.HubSpot.Client), App: app, Keys: keys}, nil
}
