package cli

import (
	"errors"
	"fmt"
	"io"
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

// lasting is a duration as a flag, such as 90s or 5m; a bare number is seconds.
type lasting time.Duration

// DurationFlag adds a flag that takes a duration.
func DurationFlag(f *pflag.FlagSet, d *time.Duration, name string, usual time.Duration, usage string) {
	*d = usual
	f.Var((*lasting)(d), name, usage)
}

// String implements pflag.Value.
func (d *lasting) String() string {
	if *d == 0 {
		return ""
	}
	return DurationText(time.Duration(*d))
}

// Set implements pflag.Value.
func (d *lasting) Set(text string) error {
	n, err := ParseDuration(text)
	*d = lasting(n)
	return err
}

// Type implements pflag.Value.
func (*lasting) Type() string { return "duration" }

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

// Says returns what shows only this text.
func Says[Out any](text string) func(io.Writer, Out) {
	return func(w io.Writer, _ Out) { fmt.Fprintln(w, text) }
}
