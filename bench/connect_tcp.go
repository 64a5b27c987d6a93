package bench

import (
	"errors"
	"net"
	"net/netip"

	"iserd/internal/initiator"
	"iserd/internal/tcpclient"
)

// dialTCP connects from the local address that was asked for.
func (c *Client) dialTCP() (*tcpclient.Conn, error) {
	d := net.Dialer{Timeout: loginTime}
	if c.opt.Local.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.opt.Local, 0))
	}
	nc, err := d.Dial("tcp", c.addr.String())
	if err != nil {
		return nil, err
	}
	conn := tcpclient.New(nc)
	conn.Timeout = loginTime
	return conn, nil
}

func (c *Client) loginTCP(l initiator.Login) (*tcpclient.Conn, error) {
	conn, err := c.dialTCP()
	if err != nil {
		return nil, err
	}
	if err := conn.Login(l); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// openTCP logs in over TCP.
func (c *Client) openTCP(l initiator.Login) (initiator.Session, error) {
	conn, err := c.loginTCP(l)
	if err != nil {
		return nil, err
	}
	s, err := tcpclient.NewSession(conn, c.opt.Depth)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// targetsTCP asks a portal for its targets over TCP.
func (c *Client) targetsTCP(l initiator.Login) ([]initiator.Discovered, error) {
	conn, err := c.loginTCP(l)
	if err != nil {
		return nil, err
	}
	text, err := conn.Text(initiator.SendTargets("All"))
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	list, err := initiator.ParseTargets(text)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return list, conn.Logout()
}
