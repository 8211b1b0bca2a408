package main

import (
	"encoding/json"
	"slices"
	"strings"
)

// subcommand splits runc's arguments at the subcommand, past global options.
func subcommand(args []string) (verb string, rest []string) {
	valued := []string{"--root", "--log", "--log-format", "--criu", "--rootless"}
	for i := 0; i < len(args); i++ {
		switch {
		case slices.Contains(valued, args[i]):
			i++
		case !strings.HasPrefix(args[i], "-"):
			return args[i], args[i+1:]
		}
	}
	return "", nil
}

// bundle finds the bundle's directory among the arguments of create and run.
func bundle(args []string) string {
	for i, a := range args {
		name, value, joined := strings.Cut(a, "=")
		if name != "--bundle" && name != "-b" {
			continue
		}
		if joined {
			return value
		}
		if i+1 < len(args) {
			return args[i+1]
		}
	}
	return "."
}

// strip removes all of linux.resources but the device rules, which are eBPF
// programs and need no controller.
func strip(config []byte) ([]byte, error) {
	var spec, linux, resources map[string]json.RawMessage
	if err := json.Unmarshal(config, &spec); err != nil {
		return nil, err
	}
	if spec["linux"] == nil {
		return config, nil
	}
	if err := json.Unmarshal(spec["linux"], &linux); err != nil {
		return nil, err
	}
	if linux["resources"] == nil {
		return config, nil
	}
	if err := json.Unmarshal(linux["resources"], &resources); err != nil {
		return nil, err
	}
	kept := make(map[string]json.RawMessage)
	if devices, ok := resources["devices"]; ok {
		kept["devices"] = devices
	}
	var err error
	if linux["resources"], err = json.Marshal(kept); err != nil {
		return nil, err
	}
	if spec["linux"], err = json.Marshal(linux); err != nil {
		return nil, err
	}
	return json.Marshal(spec)
}
