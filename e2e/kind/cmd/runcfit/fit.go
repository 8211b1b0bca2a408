package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// names of capabilities by number, of linux/capability.h.
var names = strings.Fields(
	`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID
	CAP_SETPCAP CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER
	CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE CAP_SYS_RESOURCE
	CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN
	CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE`,
)

// missingCapabilities lists what is not in the bounding set of /proc/self/status.
func missingCapabilities(status string) ([]string, error) {
	for line := range strings.Lines(status) {
		hex, ok := strings.CutPrefix(line, "CapBnd:")
		if !ok {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		var out []string
		for i, name := range names {
			if set&(1<<i) == 0 {
				out = append(out, name)
			}
		}
		return out, err
	}
	return nil, errors.New("no bounding set in /proc/self/status")
}

// fit removes capabilities and the OOM score from the configuration of a container, or of a process.
func fit(config []byte, process bool, missing []string) ([]byte, error) {
	var spec map[string]any
	d := json.NewDecoder(bytes.NewReader(config))
	d.UseNumber() // RLIM_INFINITY is no float64
	if err := d.Decode(&spec); err != nil {
		return nil, err
	}
	p := spec
	if !process {
		p, _ = spec["process"].(map[string]any)
	}
	if p == nil {
		return config, nil
	}
	sets, _ := p["capabilities"].(map[string]any)
	for name, set := range sets {
		list, _ := set.([]any)
		sets[name] = slices.DeleteFunc(list, func(c any) bool {
			text, _ := c.(string)
			return slices.Contains(missing, text)
		})
	}
	if slices.Contains(missing, "CAP_SYS_RESOURCE") {
		delete(p, "oomScoreAdj")
	}
	return json.Marshal(spec)
}
