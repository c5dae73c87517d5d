package api

import (
	"net/url"
	"slices"

	"takt/store"
)

// Subscription is a receiver of notices.
type Subscription struct {
	ID  string `json:"id"`
	URL string `json:"url"`
	store.NoticeFilter
	GitHub    bool   `json:"github"` // sets statuses of commits
	Enabled   bool   `json:"enabled"`
	Disabled  string `json:"disabled_reason,omitempty"`
	Waiting   int    `json:"waiting"` // notices that are not delivered yet
	Dead      int    `json:"dead"`    // notices that were given up
	CreatedBy string `json:"created_by"`
	CreatedAt string `json:"created_at" schema:"Time"`
	// Secret is a new one, only in the answer to the request that had new_secret.
	Secret string `json:"secret,omitempty" pattern:"^whsec_[A-Za-z0-9+/=]+$"`
}

// NewSubscription converts a subscription.
func NewSubscription(s store.Subscription) Subscription {
	s.Events, s.Platforms = append([]string{}, s.Events...), append([]store.Platform{}, s.Platforms...)
	return Subscription{
		ID: s.ID, URL: s.URL, NoticeFilter: s.NoticeFilter, GitHub: s.GitHub, Enabled: s.Disabled == "", Disabled: s.Disabled,
		Waiting: s.Waiting, Dead: s.Dead, CreatedBy: s.CreatedBy, CreatedAt: FormatTime(s.CreatedAt),
	}
}

// Subscriptions answers GET /admin/notices, oldest first.
type Subscriptions struct {
	Subscriptions []Subscription `json:"subscriptions"`
}

// CreateSubscriptionIn is the body of POST /admin/notices.
type CreateSubscriptionIn struct {
	// URL gets the notices; http or https, without a user.
	URL string `json:"url" min:"1" max:"2000"`
	SubscriptionFilter
	// GitHubToken makes a subscription that sets statuses of commits: URL is that of GitHub's
	// REST interface.
	GitHubToken string `json:"github_token,omitempty" max:"1000"`
	Reason      string `json:"reason,omitempty" max:"1000"`
}

// SubscriptionFilter says of what notices are sent; what is empty or missing lets everything
// through.
type SubscriptionFilter struct {
	Events    []string         `json:"events,omitempty"`
	Platforms []store.Platform `json:"platforms,omitempty"`
	// Labels are those that a build or worker must have.
	Labels map[string]string `json:"labels,omitempty"`
}

// MadeSubscription is a subscription with its new secret. Nothing shows the secret again. That of
// GitHub is the token that was sent.
type MadeSubscription struct {
	ID     string `json:"id"`
	Secret string `json:"secret,omitempty" pattern:"^whsec_[A-Za-z0-9+/=]+$"`
}

// SubscriptionIn names a subscription.
type SubscriptionIn struct {
	ID string `path:"id"`
	Why
}

// UpdateSubscriptionIn is the input of UpdateSubscription.
type UpdateSubscriptionIn struct {
	ID   string             `path:"id"`
	Body SubscriptionChange `body:"json"`
}

// SubscriptionChange is what changes of a subscription. What is missing stays.
type SubscriptionChange struct {
	Enabled *bool `json:"enabled,omitempty"`
	// URL needs new_secret or, of one that sets statuses of commits, github_token. Notices that
	// are not delivered yet are dropped.
	URL *string `json:"url,omitempty"`
	// NewSecret makes a new secret, which the answer shows, once. The one before is void at once.
	NewSecret bool `json:"new_secret,omitempty"`
	// GitHubToken replaces the token of a subscription that sets statuses of commits. It needs
	// url, the one that is there or a new one.
	GitHubToken string             `json:"github_token,omitempty" max:"1000"`
	Events      *[]string          `json:"events,omitempty"`
	Platforms   *[]store.Platform  `json:"platforms,omitempty"`
	Labels      *map[string]string `json:"labels,omitempty"`
	Reason      string             `json:"reason,omitempty" max:"1000"`
}

// Delivery is a notice on its way to a subscription.
type Delivery struct {
	Number    int64  `json:"number"`
	ID        string `json:"id"` // the header webhook-id
	Event     string `json:"event"`
	State     string `json:"state" enum:"waiting,sending,delivered,dead"`
	Attempts  int    `json:"attempts"`
	Error     string `json:"error,omitempty"` // of the last attempt that failed
	CreatedAt string `json:"created_at" schema:"Time"`
	NextAt    string `json:"next_attempt_at,omitempty" schema:"Time"`
	EndedAt   string `json:"ended_at,omitempty" schema:"Time"`
}

// NewDelivery converts a delivery.
func NewDelivery(d store.Delivery) Delivery {
	n := Delivery{Number: d.Number, ID: d.ID, Event: d.Event, State: d.State, Attempts: d.Attempts, Error: d.Error, CreatedAt: FormatTime(d.CreatedAt)}
	switch d.State {
	case "waiting":
		n.NextAt = FormatTime(d.NextAt)
	case "delivered", "dead":
		n.EndedAt = FormatTime(d.EndedAt)
	}
	return n
}

// Deliveries answers GET /admin/notices/:id/deliveries, newest first.
type Deliveries struct {
	Deliveries []Delivery `json:"deliveries"`
}

// ListDeliveriesIn is the input of ListDeliveries.
type ListDeliveriesIn struct {
	ID    string `path:"id"`
	Limit int    `query:"limit" min:"1" max:"1000" default:"100"`
}

// RedriveNoticesIn is the input of RedriveNotices.
type RedriveNoticesIn struct {
	ID string `path:"id"`
	// Number is that of one delivery; without one all dead ones are sent again.
	Number int64 `query:"number" min:"1"`
	Why
}

// RedrivenNotices says how many notices are sent again.
type RedrivenNotices struct {
	Redriven int `json:"redriven"`
}

// ListSubscriptions is GET /admin/notices.
var ListSubscriptions = declare[None, Subscriptions](operators, AdminKey, scopeOperate, Ops, "GET /admin/notices", Route{
	ID: "listSubscriptions", Summary: "List the subscriptions of notices, oldest first",
})

// CreateSubscription is POST /admin/notices.
var CreateSubscription = declare[CreateSubscriptionIn, MadeSubscription](operators, AdminKey, scopeOperate, Ops, "POST /admin/notices", Route{
	ID: "createSubscription", Status: 201, Errors: []int{409}, Summary: "Send notices to a URL", Says: "The secret. It is not shown again.",
})

// ShowSubscription is GET /admin/notices/:id.
var ShowSubscription = declare[SubscriptionIn, Subscription](operators, AdminKey, scopeOperate, Ops, "GET /admin/notices/:id", Route{
	ID: "showSubscription", Summary: "Show a subscription",
})

// UpdateSubscription is PATCH /admin/notices/:id.
var UpdateSubscription = declare[UpdateSubscriptionIn, Subscription](operators, AdminKey, scopeOperate, Ops, "PATCH /admin/notices/:id", Route{
	ID: "updateSubscription", Errors: []int{422}, Summary: "Enable, disable or change a subscription",
	Text: "Secrets belong to the URL: a new `url` without `new_secret` or `github_token` is refused with the code `secrets_needed`.",
})

// RotateSubscription is POST /admin/notices/:id/rotate.
var RotateSubscription = declare[SubscriptionIn, MadeSubscription](operators, AdminKey, scopeOperate, Ops, "POST /admin/notices/:id/rotate", Route{
	ID: "rotateSubscription", Summary: "Give a subscription a new secret", Text: "Notices are also signed with the previous secret for 24 hours.",
	Says: "The secret. It is not shown again.",
})

// DeleteSubscription is DELETE /admin/notices/:id.
var DeleteSubscription = declare[SubscriptionIn, None](operators, AdminKey, scopeOperate, Ops, "DELETE /admin/notices/:id", Route{
	ID: "deleteSubscription", Status: 204, Summary: "Delete a subscription and its notices", Says: "The subscription is deleted.",
})

// ListDeliveries is GET /admin/notices/:id/deliveries.
var ListDeliveries = declare[ListDeliveriesIn, Deliveries](operators, AdminKey, scopeOperate, Ops, "GET /admin/notices/:id/deliveries", Route{
	ID: "listDeliveries", Summary: "List a subscription's last notices, newest first",
	Text: "Delivered ones are kept for an hour, dead ones for a week.",
})

// RedriveNotices is POST /admin/notices/:id/redrive.
var RedriveNotices = declare[RedriveNoticesIn, RedrivenNotices](operators, AdminKey, scopeOperate, Ops, "POST /admin/notices/:id/redrive", Route{
	ID: "redriveNotices", Summary: "Send dead notices again",
})

// TestSubscription is POST /admin/notices/:id/test.
var TestSubscription = declare[SubscriptionIn, None](operators, AdminKey, scopeOperate, Ops, "POST /admin/notices/:id/test", Route{
	ID: "testSubscription", Status: 204, Summary: "Send a notice of the type test, once", Says: "The notice is about to be sent.",
})

// Check implements [Checker].
func (c *CreateSubscriptionIn) Check() error {
	if err := checkNotices(c.URL, c.Events, c.Platforms, c.Labels); err != nil {
		return err
	}
	if c.GitHubToken != store.Text(c.GitHubToken) || c.GitHubToken != "" && len(c.Events) > 0 {
		return invalid("github_token must be a token of GitHub, without events")
	}
	return cleanReason(&c.Reason)
}

// Check implements [Checker].
func (c *SubscriptionChange) Check() error {
	at, f := "https://unchanged", store.NoticeFilter{}
	if c.URL != nil {
		at = *c.URL
	}
	if c.Events != nil {
		f.Events = *c.Events
	}
	if c.Platforms != nil {
		f.Platforms = *c.Platforms
	}
	if c.Labels != nil {
		f.Labels = *c.Labels
	}
	if err := checkNotices(at, f.Events, f.Platforms, f.Labels); err != nil {
		return err
	}
	if c.GitHubToken != store.Text(c.GitHubToken) {
		return invalid("github_token must be a token of GitHub")
	}
	if c.GitHubToken != "" && c.URL == nil { // another may have changed it just now
		return invalid("github_token needs url, because the token is sent there")
	}
	return cleanReason(&c.Reason)
}

func checkNotices(at string, events []string, platforms []store.Platform, labels map[string]string) error {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || len(at) > 2000 || at != store.Text(at) {
		return invalid("url must be an http or https URL without a user, of at most 2000 bytes")
	}
	for _, e := range events {
		if !slices.Contains(store.NoticeEvents(), e) {
			return invalid("events: " + store.Text(e) + " is no event of notices")
		}
	}
	if len(events) > 20 || len(platforms) > 32 || len(labels) > 32 {
		return invalid("at most 20 events, 32 platforms and 32 labels")
	}
	for _, p := range platforms {
		if !p.Valid() { // replies promise names
			return invalid("platforms must be names of platforms")
		}
	}
	for k, v := range labels {
		if k == "" || len(k) > 256 || len(v) > 1024 || k != store.Text(k) || v != store.Text(v) {
			return invalid("labels must be names and values of at most 256 and 1024 bytes")
		}
	}
	return nil
}
