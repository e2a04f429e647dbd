package resolvconf

import (
	"context"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
)

// busTimeout bounds a call over the system bus.
const busTimeout = 5 * time.Second

// systemBus is the path of the system bus's socket.
type systemBus string

// usualBus is where the socket is unless [Host] says otherwise.
const usualBus = "/run/dbus/system_bus_socket"

// ReloadError says that a manager could not be told to read its files again.
type ReloadError struct {
	Manager Manager
	Err     error
}

// Error returns the cause, and the command that does the same.
func (e *ReloadError) Error() string {
	return fmt.Sprintf("telling %s to read its files again: %v; %s", e.Manager, e.Err, restartHint(e.Manager))
}

// Unwrap returns the cause.
func (e *ReloadError) Unwrap() error { return e.Err }

// restartHint says how to make a manager read its files again.
func restartHint(m Manager) string {
	if m == Resolved {
		return "run systemctl restart systemd-resolved on the node"
	}
	return "run systemctl reload NetworkManager on the node"
}

// reload tells a manager over the system bus to read its files again. The error is a [*ReloadError].
//
// systemd-resolved can do so from version 255 on, and systemd restarts an earlier one, which keeps no
// look-ups.
func (b systemBus) reload(ctx context.Context, m Manager) error {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	err := b.call(ctx, m)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil { // which closes the connection
		err = fmt.Errorf("no reply over the system bus: %w", ctx.Err())
	}
	return &ReloadError{Manager: m, Err: err}
}

// call makes the call of reload.
func (b systemBus) call(ctx context.Context, m Manager) error {
	conn, err := dbus.Connect("unix:path="+dbus.EscapeBusAddressValue(string(b)), dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if m == Resolved {
		systemd := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
		return systemd.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.ReloadOrRestartUnit", 0, "systemd-resolved.service", "replace").Err
	}
	const everything uint32 = 0
	manager := conn.Object("org.freedesktop.NetworkManager", "/org/freedesktop/NetworkManager")
	return manager.CallWithContext(ctx, "org.freedesktop.NetworkManager.Reload", 0, everything).Err
}
