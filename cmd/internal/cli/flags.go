package cli

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"takt/http/api"
	"takt/store"
)

// Complete gives the shell the values of a flag for completion.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
}

// OneOf has a flag take only these values, which the shell completes.
func OneOf(cmd *cobra.Command, flag string, values ...string) {
	Complete(cmd, flag, values...)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if v, _ := cmd.Flags().GetString(flag); v != "" && !slices.Contains(values, v) {
			return Usage("--%s: %q is not one of %s", flag, v, strings.Join(values, ", "))
		}
		return nil
	}
}

// NeedReason returns an error if reason is empty.
func NeedReason(reason string) error {
	if strings.TrimSpace(reason) == "" {
		return Usage("--reason is required")
	}
	return nil
}

// ReasonFlag adds --reason to a command whose change is audited.
func ReasonFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("reason", "", "why, for the audit")
}

// ParseDuration takes "90s" or "5m", and a bare number as seconds.
func ParseDuration(v string) (time.Duration, error) {
	d, err := api.ParseDuration(v)
	if err != nil {
		err = errors.New(`must be seconds, or with a unit, such as "90s" or "5m"`)
	}
	return d, err
}

// textFlag is a flag of a type that pflag does not know.
type textFlag[T any] struct {
	to   *T
	kind string
	show func(T) string
	read func(string) (T, error)
}

func (t textFlag[T]) String() string { return t.show(*t.to) }
func (t textFlag[T]) Type() string   { return t.kind }
func (t textFlag[T]) Set(text string) (err error) {
	*t.to, err = t.read(text)
	return err
}

// TextFlag adds a flag of a type that pflag does not know, whose default is *to.
func TextFlag[T any](f *pflag.FlagSet, to *T, name, kind, usage string, show func(T) string, read func(string) (T, error)) {
	f.Var(textFlag[T]{to, kind, show, read}, name, usage)
}

// DurationFlag adds a flag that takes a duration, such as 90s or 5m; a bare number is seconds.
func DurationFlag(f *pflag.FlagSet, d *time.Duration, name string, usual time.Duration, usage string) {
	*d = usual
	TextFlag(f, d, name, "duration", usage, func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return DurationText(d)
	}, ParseDuration)
}

// DurationText writes 5m, not 5m0s.
func DurationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// ReadLabels reads labels as flags give them, name=value.
func ReadLabels(flags []string) (store.Labels, error) {
	labels := store.Labels{}
	for _, l := range flags {
		name, value, ok := strings.Cut(l, "=")
		if !ok {
			return nil, Usage("--label %s: want name=value", l)
		}
		if err := labels.Set(name, value); err != nil {
			return nil, Usage("--label %s: %s", l, Message(err))
		}
	}
	return labels, nil
}
