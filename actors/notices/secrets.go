package notices

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"takt/store"
	"takt/store/seal"
)

// oldLife is how long the secret before signs too.
const oldLife = 24 * time.Hour

// Make adds a subscription, and returns it and its secret. With a token it is one of GitHub.
func (n *Notices) Make(ctx context.Context, s store.Subscription, token string) (store.Subscription, string, error) {
	s.ID, s.CreatedAt, s.GitHub = "sub_"+store.NewID(), time.Now(), token != ""
	if s.GitHub && !confidential(s.URL) {
		return s, "", errPlain()
	}
	secret := newSecret()
	text := secretText(secret)
	if s.GitHub {
		secret, text = []byte(token), ""
	}
	s.Secrets = n.seal(s.ID, store.NoticeSecrets{Current: secret})
	return s, text, n.Create(ctx, s)
}

// Rotate gives a subscription a new secret and returns it. The one before signs too for a day.
func (n *Notices) Rotate(ctx context.Context, id string) (string, error) {
	secret := newSecret()
	_, err := n.Update(ctx, id, func(s *store.Subscription) error {
		if s.GitHub {
			return store.NewError(store.Conflict, "Its secret is a token of GitHub: send another github_token instead")
		}
		last, err := n.open(*s)
		s.Secrets = n.seal(s.ID, store.NoticeSecrets{Current: secret, Old: last.Current, OldUntil: time.Now().Add(oldLife)})
		return err
	})
	return secretText(secret), err
}

// Change changes a subscription. Its secrets belong to its URL, so that nobody gets what the
// receiver before them was trusted with: a change of the URL needs a token of GitHub, or fresh
// for a new secret that signs, which is returned. The secrets before are void then. Both are
// allowed without a new URL. Error: SecretsNeeded, InvalidArgument, NotFound.
func (n *Notices) Change(ctx context.Context, id, token string, fresh bool, change func(*store.Subscription)) (s store.Subscription, secret string, err error) {
	made := newSecret()
	s, err = n.Update(ctx, id, func(s *store.Subscription) error {
		last := s.URL
		change(s)
		switch moved := s.URL != last; {
		case s.GitHub && fresh:
			return store.NewError(store.InvalidArgument, "new_secret: its secret is a token of GitHub: send github_token")
		case !s.GitHub && token != "":
			return store.NewError(store.InvalidArgument, "github_token: it is no subscription of GitHub statuses: send new_secret")
		case s.GitHub && moved && token == "":
			return store.NewError(store.SecretsNeeded, "The token of GitHub belongs to the URL before: send github_token with the new url. Nothing was changed")
		case moved && !s.GitHub && !fresh:
			return store.NewError(store.SecretsNeeded, "The secret belongs to the URL before: send new_secret: true with the new url; the answer has the new secret. Nothing was changed")
		case token != "" && !confidential(s.URL):
			return errPlain()
		}
		if s.GitHub {
			made = []byte(token)
		}
		if fresh || token != "" {
			s.Secrets = n.seal(s.ID, store.NoticeSecrets{Current: made})
		}
		return nil
	})
	if err == nil && fresh {
		secret = secretText(made)
	}
	return s, secret, err
}

// confidential reports whether what is sent to a URL can't be read on its way.
func confidential(at string) bool {
	u, err := url.Parse(at)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "https" || err == nil && ip.IsLoopback()
}

func errPlain() error {
	return store.NewError(store.InvalidArgument, "url must be an https one, because the token of GitHub is sent to it")
}

func newSecret() []byte {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails: crypto/rand ends the process instead
	return secret
}

func secretText(secret []byte) string { return "whsec_" + base64.StdEncoding.EncodeToString(secret) }

func (n *Notices) seal(id string, secrets store.NoticeSecrets) []byte {
	content, _ := json.Marshal(secrets) // never fails
	return n.keys.Seal(seal.NoticeSecrets, id, content)
}

func (n *Notices) open(s store.Subscription) (secrets store.NoticeSecrets, err error) {
	content, err := n.keys.Open(seal.NoticeSecrets, s.ID, s.Secrets)
	if err == nil {
		err = json.Unmarshal(content, &secrets)
	}
	if err != nil {
		return secrets, fmt.Errorf("secrets of subscription %s: %w", s.ID, err)
	}
	return secrets, nil
}
