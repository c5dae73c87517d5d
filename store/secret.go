package store

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The limits of secrets.
const (
	MaxSecretValue = 64 << 10 // bytes
	// MinMasked is how many bytes a value has at least that is masked. Shorter ones are in texts
	// that have nothing to do with it.
	MinMasked = 6
	// MaxStoredSecrets is how many there may be, and MaxSecretKeys how many keys one may belong to.
	MaxStoredSecrets = 1000
	MaxSecretKeys    = 100
)

// Secret describes a value that builds ask for by name.
type Secret struct {
	Name string
	// AllKeys is true if the builds of all keys may have it, those of the API key included. Else
	// only the builds of Keys may.
	AllKeys bool
	Keys    []string
	// Mask is true if workers leave the value out of what they send.
	Mask bool
	// Binary values are no text, so no variable can have them.
	Binary bool

	CreatedBy, UpdatedBy string
	CreatedAt, UpdatedAt time.Time
}

// SecretValue is what the worker gets that holds a build.
type SecretValue struct {
	Name  string
	Mask  bool
	Value Hidden
}

// Hidden is shown as stars wherever it is formatted, so that no log has it.
type Hidden []byte

func (Hidden) String() string { return "********" }

// GoString hides the value from %#v.
func (Hidden) GoString() string { return "********" }

// MarshalText hides the value from encoders.
func (Hidden) MarshalText() ([]byte, error) { return []byte("********"), nil }

// CheckSecretName returns an error, which may be shown, if no secret may be called name. The error
// does not repeat it, because it may be a value in the wrong place.
func CheckSecretName(name string) error {
	switch {
	case len(name) > MaxParamName || !validParam.MatchString(name):
		return NewError(InvalidSecret, "The name of a secret is 1 to 128 of A-Z, 0-9 and _, and does not begin with a digit")
	case RefusedName(name):
		return NewError(ReservedParam, "No build may set "+name+", because it changes what programs run")
	}
	return nil
}

// Check checks s with a value and sets Binary. Its error may be shown; it has nothing of the value.
func (s *Secret) Check(value []byte) error {
	if err := CheckSecretName(s.Name); err != nil {
		return err
	}
	slices.Sort(s.Keys)
	s.Keys = slices.Compact(s.Keys)
	switch n := len(value); {
	case s.AllKeys == (len(s.Keys) > 0):
		return NewError(InvalidSecret, "A secret belongs to some keys, or to all: give either")
	case len(s.Keys) > MaxSecretKeys:
		return NewError(InvalidSecret, fmt.Sprintf("A secret belongs to at most %d keys, got %d", MaxSecretKeys, len(s.Keys)))
	case n == 0:
		return NewError(InvalidSecret, "The value of a secret must not be empty")
	case n > MaxSecretValue:
		return NewError(TooLarge, fmt.Sprintf("The value of a secret has at most %d bytes", MaxSecretValue))
	case n < MinMasked && s.Mask:
		return NewError(InvalidSecret, fmt.Sprintf("A value of less than %d bytes can't be masked in logs, because it would hide other text too: set it without a mask (--no-mask), or take a longer one", MinMasked))
	}
	s.Binary = !utf8.Valid(value) || slices.Contains(value, 0)
	return nil
}

// namesOf writes names of secrets into a sentence.
func namesOf(names []string) string {
	if len(names) == 1 {
		return "secret " + names[0]
	}
	return "secrets " + strings.Join(names, ", ")
}

// ErrUnknownSecrets returns the answer to a submitter who asks for secrets that don't exist.
func ErrUnknownSecrets(names []string) error {
	return NewError(UnknownSecret, "There is no "+namesOf(names)+": an operator sets it with takt secret set")
}

// ErrSecretNotYours returns the answer to a submitter whose key, "" for the API key, may not have
// secrets.
func ErrSecretNotYours(key string, names []string) error {
	if key == "" {
		return NewError(SecretNotYours, "Builds of the API key may have secrets of all keys only (takt secret set --all), not the "+namesOf(names))
	}
	return NewError(SecretNotYours, "Builds of key "+key+" may not have the "+namesOf(names)+": an operator adds the key with takt secret set")
}

// ErrSecretsNotYours returns the answer to who changes the parameters of a retry whose secrets the
// own key may not have.
func ErrSecretsNotYours(names []string) error {
	return NewError(SecretsNotYours, "The build has the "+namesOf(names)+", which your key may not have: retry it without changes, or submit a build of your own")
}

// ErrSecretGone returns the error of a hand-out of which secrets are missing. It is also the error
// of the build, which fails.
func ErrSecretGone(names []string) error {
	return NewError(SecretGone, "The "+namesOf(names)+" can't be given to this build any more: removed since the submit, or no longer for its key (secret_gone)")
}
