//! MariaDB and MySQL: the conformance suite, and what only they have.

mod mariadb {
    mod suite {
        use outhaul_testkit::servers::Flavour;

        outhaul_testkit::store_suite!(Flavour::MariaDb);
    }
}

mod oracle {
    mod suite {
        use outhaul_testkit::servers::Flavour;

        outhaul_testkit::store_suite!(Flavour::MySql);
    }
}
